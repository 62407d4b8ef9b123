"""Gangs on a cluster: pods that start all together or not at all.

members       which gang a pod belongs to, of what size, for how long; by what people write
sources       the objects that know a gang's size
objects       the `Gang` object, which says what became of a gang, and is its reservation
state         what is known of one gang, and what follows from it
roster        who belongs to which, as pods come and go
nodes         which nodes a pod may go to; in which rack and block they are
picture       the cluster and its gangs, in the numbers of the brain
decide        who starts, who is promised what, who makes room: the brain's word
planning      the question to the brain, and what its answer means
reservations  the places of members on their way
permit        members that arrive at their bind, and wait for each other
singles       single pods, beside promises and within their queue's limit
loads         what each queue has
store         Gang objects, written and read
doors         gates and evictions
teller        events; words: what they say
controller    all of it, again and again, in the replica that leads
"""
