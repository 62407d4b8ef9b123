"""The API server: requests, lists and watches, events, leader election.

objects   the fields that we read and write of its objects
client    requests, typed by these
watch     a copy of its objects of one kind, kept up to date
events    events on objects, which never hold up who records them
evict     pods that are asked to end, and budgets that refuse
leader    who of several is the one that acts
pages     a program's metrics and probe pages over HTTP
"""
