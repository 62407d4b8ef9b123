{{- define "aliquot.name" -}}
{{- if contains "aliquot" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-aliquot" .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* The labels of a part: (list . "node"). */}}
{{- define "aliquot.labels" -}}
{{- $root := index . 0 -}}
{{ include "aliquot.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "aliquot.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "aliquot.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The agent's resources: with the host's memory for that which leaves GPUs. */}}
{{- define "aliquot.nodeResources" -}}
{{- $resources := deepCopy .Values.node.resources -}}
{{- with .Values.node.hostMemory -}}
{{- $more := trimSuffix "Gi" . | int | mul 1024 -}}
{{- range $kind := list "requests" "limits" -}}
{{- $part := get $resources $kind | default dict -}}
{{- if or (eq $kind "requests") (hasKey $part "memory") -}}
{{- $has := include "aliquot.mebibytes" (list $kind (get $part "memory" | default "0Mi" | toString)) | int -}}
{{- $_ := set $part "memory" (printf "%dMi" (add $has $more)) -}}
{{- $_ := set $resources $kind $part -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* An amount of memory in Mi: (list "requests" "192Mi"). */}}
{{- define "aliquot.mebibytes" -}}
{{- $text := index . 1 -}}
{{- if regexMatch "^[0-9]+Gi$" $text -}}{{ trimSuffix "Gi" $text | int | mul 1024 }}
{{- else if regexMatch "^[0-9]+Mi$" $text -}}{{ trimSuffix "Mi" $text }}
{{- else -}}
{{- fail (printf "node.resources.%s.memory is %s: with node.hostMemory write it in Mi or Gi" (index . 0) $text) -}}
{{- end -}}
{{- end -}}

{{/* The resources of all chosen presets, one a line. */}}
{{- define "aliquot.resources" -}}
{{- $presets := .Files.Get "files/presets.yaml" | fromYaml -}}
{{- $seen := dict -}}
{{- range .Values.presets -}}
{{- $preset := . -}}
{{- range index $presets $preset -}}
{{- if hasKey $seen . -}}
{{- fail (printf "presets: %s and %s both use %s; choose one of them" (get $seen .) $preset .) -}}
{{- end -}}
{{- $_ := set $seen . $preset }}
- {{ . }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Who makes the certificates: the extender (self), cert-manager, or people (secrets). */}}
{{- define "aliquot.tlsFrom" -}}
{{- $tls := .Values.scheduler.tls -}}
{{- if ne (empty $tls.serverSecret) (empty $tls.clientSecret) -}}
{{- fail "scheduler.tls: serverSecret and clientSecret go together" -}}
{{- else if and $tls.serverSecret $tls.certManager -}}
{{- fail "scheduler.tls: certManager and serverSecret exclude each other" -}}
{{- else if $tls.serverSecret -}}secrets
{{- else if $tls.certManager -}}cert-manager
{{- else -}}self
{{- end -}}
{{- end -}}

{{/* The extender's certificate; the authority of it where the extender makes its own. */}}
{{- define "aliquot.serverSecret" -}}
{{ .Values.scheduler.tls.serverSecret | default (printf "%s-extender" (include "aliquot.name" .)) }}
{{- end -}}

{{/* kube-scheduler's certificate, and the authority that signed the extender's. */}}
{{- define "aliquot.clientSecret" -}}
{{ .Values.scheduler.tls.clientSecret | default (printf "%s-extender-client" (include "aliquot.name" .)) }}
{{- end -}}

{{- define "aliquot.isOpenShift" -}}
{{- $asked := toString .Values.openshift -}}
{{- if or (eq $asked "true") (and (eq $asked "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}
yes
{{- end -}}
{{- end -}}

{{/* The extender's address, as its certificate has it. */}}
{{- define "aliquot.extenderHost" -}}
{{ include "aliquot.name" . }}-scheduler.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* All names and addresses in the extender's certificate, one a line. */}}
{{- define "aliquot.extenderNames" -}}
{{- $host := include "aliquot.extenderHost" . -}}
- {{ $host }}
- {{ trimSuffix ".svc" $host }}
- {{ $host }}.cluster.local
{{- end -}}

{{/* What a container needs that touches nothing of its node. */}}
{{- define "aliquot.unprivileged" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* kube-scheduler's version is the cluster's: v1.36.4 of v1.36.4-eks-1. */}}
{{- define "aliquot.kubeSchedulerImage" -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{ .Values.kubeScheduler.image.repository }}:{{ .Values.kubeScheduler.image.tag | default $version }}
{{- end -}}

{{/* Where the pods of a Deployment go: (list . VALUES "component"). */}}
{{- define "aliquot.placement" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.affinity }}
affinity: {{- toYaml $values.affinity | nindent 2 }}
{{- else }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "aliquot.selector" (list $root (index . 2)) | nindent 14 }}
{{- end }}
{{- end -}}
