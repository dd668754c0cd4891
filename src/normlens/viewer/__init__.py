"""See it: one self-contained page and one notebook widget over the same front end.

`payload` turns labelled arrays into one JSON document; `page` puts that document into a single HTML file that opens
offline; `widget` hands it to a notebook. The front end's sources lie in `front/`, its built bundle in `static/`.
"""
