package storage

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// StatusCount is the number of a consumer's jobs in one state.
type StatusCount struct {
	ConsumerKey           uint32
	ChannelID, ConsumerID string
	Status                Status
	Count                 int64
	Oldest, Newest        *time.Time // of the jobs' last status changes
}

// jobStatusSQL reads every consumer with a handful of index probes, however many jobs it has: all jobs, delivered
// and shelved ones from the tally, dead ones as DeadCounts does, those in flight by counting index entries (few), and
// the rest is QUEUED. The oldest and newest of each state are one probe each
// (MySQL sorts all of them unless the ORDER BY names the whole key).
var jobStatusSQL = func() string {
	var probes strings.Builder
	for _, n := range statusNames {
		for _, dir := range []string{"ASC", "DESC"} {
			fmt.Fprintf(&probes, `,
		(SELECT j.statusChangedAt FROM job j FORCE INDEX (changed) WHERE j.consumerId = c.id AND j.status = %[1]d ORDER BY j.consumerId %[2]s, j.status %[2]s, j.statusChangedAt %[2]s LIMIT 1)`, n.status, dir)
		}
	}
	return `SELECT c.id, ch.channelId, c.consumerId,
		(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = 1 AND refId = c.id),
		(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = 2 AND refId = c.id),
		COALESCE(s.dead_count, 0) + COALESCE(d.delta, 0),
		(SELECT COUNT(*) FROM job j FORCE INDEX (claim) WHERE j.consumerId = c.id AND j.status = 1002),
		(SELECT COALESCE(SUM(n), 0) FROM tally WHERE kind = 4 AND refId = c.id)` + probes.String() + `
		FROM consumer c
		JOIN channel ch ON ch.id = c.channelId
		LEFT JOIN dlq_summary s ON s.consumerId = c.id
		LEFT JOIN (SELECT consumerId, SUM(dlqDelta) AS delta FROM job FORCE INDEX (uncounted)
		           WHERE dlqDelta IN (-1, 1) GROUP BY consumerId) d ON d.consumerId = c.id
		ORDER BY c.id`
}()

// JobStatus counts every consumer's jobs by state, in one statement. States without a job are left out.
func (s *Store) JobStatus(ctx context.Context) ([]StatusCount, error) {
	perConsumer, err := collect(ctx, s.db, scanStatusCounts, jobStatusSQL)
	if err != nil {
		return nil, err
	}
	var out []StatusCount
	for _, counts := range perConsumer {
		for _, c := range counts {
			if c.Count > 0 {
				out = append(out, c)
			}
		}
	}
	return out, nil
}

func scanStatusCounts(rows *sql.Rows) ([]StatusCount, error) {
	var of StatusCount
	var all, delivered, dead, inflight, shelved int64
	times := make([]sql.NullTime, 2*len(statusNames))
	dest := []any{&of.ConsumerKey, &of.ChannelID, &of.ConsumerID, &all, &delivered, &dead, &inflight, &shelved}
	for i := range times {
		dest = append(dest, &times[i])
	}
	if err := rows.Scan(dest...); err != nil {
		return nil, err
	}
	counts := map[Status]int64{
		StatusQueued:    all - delivered - dead - inflight - shelved,
		StatusInflight:  inflight,
		StatusDelivered: delivered,
		StatusDead:      dead,
		StatusShelved:   shelved,
	}
	out := make([]StatusCount, len(statusNames))
	for i, n := range statusNames {
		out[i] = of
		out[i].Status, out[i].Count = n.status, counts[n.status]
		out[i].Oldest, out[i].Newest = timeOf(times[2*i]), timeOf(times[2*i+1])
	}
	return out, nil
}

// QueuedJobCounts is the number of QUEUED jobs of each consumer, from JobStatus.
func (s *Store) QueuedJobCounts(ctx context.Context) ([]StatusCount, error) {
	all, err := s.JobStatus(ctx)
	var queued []StatusCount
	for _, c := range all {
		if c.Status == StatusQueued {
			queued = append(queued, c)
		}
	}
	return queued, err
}
