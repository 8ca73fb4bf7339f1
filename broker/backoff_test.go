package broker

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestScheduleWait(t *testing.T) {
	t.Parallel()
	promised := Schedule{5 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 3 * time.Minute}
	for _, c := range []struct {
		schedule Schedule
		retry    int
		want     time.Duration
	}{
		{promised, 0, 5 * time.Second},
		{promised, 4, 3 * time.Minute},
		{promised, 5, 4 * time.Minute},
		{promised, 6, 5 * time.Minute},
		{promised, 1 << 40, 24 * time.Hour},
		{Schedule{10 * time.Second}, 1, 20 * time.Second},
		{Schedule{10 * time.Second}, 2, 40 * time.Second},
		{Schedule{10 * time.Second}, 3, 80 * time.Second},
		{Schedule{10 * time.Second}, 4, 140 * time.Second},
		{Schedule{0}, 3, 4 * time.Millisecond},
		{Schedule{48 * time.Hour}, 7, 48 * time.Hour},
		{nil, 3, 0},
	} {
		if got := c.schedule.Wait(c.retry); got != c.want {
			t.Errorf("%v.Wait(%d) = %v, want %v", c.schedule, c.retry, got, c.want)
		}
	}
}

func TestScheduleNeverOverflows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := Schedule(rapid.SliceOfN(rapid.Map(rapid.Int64Range(0, int64(72*time.Hour)), func(n int64) time.Duration { return time.Duration(n) }), 1, 6).Draw(t, "schedule"))
		retry := rapid.IntRange(len(s), 1<<62).Draw(t, "retry")
		most := max(backoffMost, s[len(s)-1])
		if d := s.Wait(retry); d < s.Wait(len(s)-1) || d > most {
			t.Fatalf("%v.Wait(%d) = %v, want from %v to %v", s, retry, d, s[len(s)-1], most)
		}
	})
}
