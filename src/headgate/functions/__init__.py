"""Everything that a user derives from: functions, sources, sinks, windows, state, watermark strategies.

Plain classes without a runtime: the operators in `task` call them. A class has PyFlink's name if PyFlink has the class.
"""
