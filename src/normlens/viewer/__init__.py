"""See it: one self-contained page and one notebook widget over the same front end.

`page_data` turns an analysis into one JSON document; `page` puts that document into a single HTML file that opens
offline; `display` hands it to a notebook or a browser. The front end's sources are in `front/`, its built bundle in
`static/`; `other_viewers` has the arguments of BertViz and CircuitsVis.
"""
