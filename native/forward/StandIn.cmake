# aliquot_stand_in(NAME SONAME .. HEADER .. DEFINE .. RESULT .. PREFIX .. SOURCES ..)
#
# A library with the name of another one: generated symbols, the forwarding, and the hooks in SOURCES.
# It uses glibc's oldest symbols and a plain ELF hash table, which the fitting step rebuilds in place
# where the driver's names differ from ours. It is never unloaded: the real library stays, and has the
# name by which a program would open it next.
function(aliquot_stand_in name)
	cmake_parse_arguments(arg "" "SONAME;HEADER;DEFINE;RESULT;PREFIX" "SOURCES" ${ARGN})
	set(here ${CMAKE_CURRENT_SOURCE_DIR})
	set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
	set(outputs ${generated}/slots.h ${generated}/forward.S ${generated}/names.c
		${generated}/hooks.c)
	add_custom_command(
		OUTPUT ${outputs}
		COMMAND ${Python3_EXECUTABLE} ${ALIQUOT_NATIVE}/tools/standin.py
			--compiler ${CMAKE_C_COMPILER} --header ${ALIQUOT_CUDA_INCLUDE}/${arg_HEADER}
			--define ${arg_DEFINE} --result ${arg_RESULT} --prefix ${arg_PREFIX}
			--extra ${here}/extra_symbols.txt --hooks ${here}/hooks.txt --out ${generated}
		DEPENDS ${ALIQUOT_NATIVE}/tools/standin.py ${here}/hooks.txt ${here}/extra_symbols.txt
		VERBATIM)

	set(target aliquot_stand_in_${name})
	add_library(${target} SHARED
		${outputs} ${arg_SOURCES} ${ALIQUOT_NATIVE}/forward/forward.c)
	target_include_directories(${target} PRIVATE ${here} ${generated} ${ALIQUOT_NATIVE}/forward)
	target_link_libraries(${target} PRIVATE aliquot_ledger)
	# We hook functions that NVIDIA has deprecated, too.
	target_compile_options(${target} PRIVATE -Wno-deprecated-declarations)
	target_link_options(${target} PRIVATE
		-Wl,-soname,${arg_SONAME} -Wl,--hash-style=sysv -Wl,-z,relro -Wl,-z,nodelete
		-Wl,--exclude-libs,ALL)
	# Before glibc 2.34 dlsym was in libdl: a program that links nothing but us needs it.
	find_library(ALIQUOT_LIBDL NAMES libdl.so.2 REQUIRED)
	target_link_options(${target} PRIVATE -Wl,--no-as-needed ${ALIQUOT_LIBDL} -Wl,--as-needed)
	set_target_properties(${target} PROPERTIES
		POSITION_INDEPENDENT_CODE ON PREFIX "" OUTPUT_NAME ${arg_SONAME} SUFFIX "" NO_SONAME ON
		LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/_native/lib)
	install(TARGETS ${target} LIBRARY DESTINATION aliquot/_native/lib)
endfunction()
