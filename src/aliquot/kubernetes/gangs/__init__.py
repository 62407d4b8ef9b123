"""Gangs on a cluster: pods that start all together or not at all.

members       which gang a pod belongs to, of what size, for how long; by what people write
sources       the objects that know a gang's size; finished: members that have done their work
objects       the `Gang` object, which says what became of a gang, and is its reservation
state         what is known of one gang, and what follows from it
roster        who belongs to which, as pods come and go
elastic       what elastic jobs could give back, and how long that takes
holdings      who has what of all GPUs, and what each queue has
nodes         which nodes a pod may go to; ground: in which rack and block all of them are
picture       the cluster in the numbers of the brain
question      what is asked of the brain
decide        who starts, who is promised what, who makes room: the brain's word
deeds         what is done of it, as far as it still can be
planning      the question, the answer in a thread, the deeds
reservations  the places of members on their way
permit        members that arrive at their bind, and wait for each other
singles       single pods within their queue's limit; beside: and what promises leave them
answers       what kube-scheduler is told
loads         what each queue has, for its status
store         Gang objects, written and read
restore       what the leader before has reserved, checked
doors         gates and evictions; budgets: what follows where an eviction is refused
teller        events; words: what they say
term          whether this replica may act
controller    all of it, again and again, in the replica that leads
"""
