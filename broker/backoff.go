package broker

import "time"

const (
	backoffStep = time.Minute
	backoffMost = 24 * time.Hour
)

// Schedule is the wait before each retry. It is not jittered: clients were promised these times, and the slots of a
// consumer already bound how many retries set out together.
type Schedule []time.Duration

// Wait returns the time between the failure of attempt retry (0 is the first attempt) and the next one. Past the end
// of the list the last wait doubles, growing by at most a minute a time, up to a day.
func (s Schedule) Wait(retry int) time.Duration {
	if len(s) == 0 {
		return 0
	}
	if retry < len(s) {
		return s[max(retry, 0)]
	}
	wait := s[len(s)-1]
	for n := retry - len(s) + 1; n > 0 && wait < backoffMost; n-- {
		if wait >= backoffStep {
			// From here on it grows evenly: no loop over what may be thousands of retries.
			return min(wait+time.Duration(min(n, int(backoffMost/backoffStep)))*backoffStep, backoffMost)
		}
		wait = min(max(2*wait, time.Millisecond), wait+backoffStep)
	}
	return min(wait, max(backoffMost, s[len(s)-1]))
}
