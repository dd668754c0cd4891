"""Never silently wrong, class by class: every case is answered exactly or refused with a sentence, whatever ran before.

Each section is a way in which a wrong number once came back without an error. Answers are compared with the slow
reference, or with a lens that has seen nothing yet.
"""
