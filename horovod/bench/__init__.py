"""The frameworks' alternatives for `hvd bench`, which entry points of the group "hvd_core.bench" name. Importing this
folder's modules loads no framework."""
