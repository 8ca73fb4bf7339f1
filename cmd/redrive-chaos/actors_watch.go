//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rs/xid"
)

// watch asks all instances at the same moments for their counts, while looking lasts. One that does not answer
// misses its turns, and holds up no other.
func watch(ctx, looking context.Context, c *client) {
	var all sync.WaitGroup
	defer all.Wait()
	busy := make([]atomic.Bool, len(c.instances))
	for n := 0; hold(looking, 200*time.Millisecond); n++ {
		for _, i := range c.instances {
			if !busy[i.n-1].CompareAndSwap(false, true) {
				continue
			}
			all.Go(func() {
				defer busy[i.n-1].Store(false)
				c.show(ctx, i, opDLQStatus)
				if n%5 == 0 {
					c.show(ctx, i, opMetrics)
					c.show(ctx, i, opJobStatus)
				}
			})
		}
	}
}

// show asks one instance for one kind of counts.
func (c *client) show(ctx context.Context, i *instance, kind string) op {
	r := request{method: http.MethodGet}
	switch kind {
	case opDLQStatus:
		r.path, r.note = "/dlq-status", noteDLQStatus
	case opMetrics:
		r.path, r.note = "/metrics", noteMetrics
	case opJobStatus:
		r.path, r.note = "/job-status", noteJobStatus
	}
	o, _ := c.do(ctx, op{Kind: kind, Instance: i.n}, r)
	return o
}

// witness looks into the database directly.
type witness struct {
	db  *sql.DB
	rec *recorder
}

// newWitness makes the database of the run and connects to it.
func newWitness(ctx context.Context, server database, name string, rec *recorder) (*witness, error) {
	admin, err := sql.Open("mysql", server.DSN(""))
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	if _, err := admin.ExecContext(ctx, "CREATE DATABASE IF NOT EXISTS "+name); err != nil {
		return nil, err
	}
	cfg, err := mysql.ParseDSN(server.DSN(name))
	if err != nil {
		return nil, err
	}
	cfg.ReadTimeout, cfg.Timeout = 5*time.Second, 2*time.Second
	cfg.Logger = &mysql.NopLogger{} // we kill the server ourselves
	cfg.Params = map[string]string{"time_zone": "'+00:00'"}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(4)
	return &witness{db: db, rec: rec}, nil
}

// look takes snapshots and sightings until ctx ends. The database is away now and then: those looks fail and
// are not counted.
func (w *witness) look(ctx context.Context) {
	for n := 0; hold(ctx, 100*time.Millisecond); n++ {
		if s, err := w.snapshot(ctx); err == nil {
			w.rec.edit(func(h *history) { h.Snapshots = append(h.Snapshots, s) })
		}
		if n%10 == 0 {
			if s, err := w.sight(ctx); err == nil {
				w.rec.edit(func(h *history) { h.Sightings = append(h.Sightings, s) })
			}
		}
	}
}

// snapshot reads both sides of the equation in one statement, so at one instant. The deltas come through
// their index, the rest from the rows.
func (w *witness) snapshot(ctx context.Context) (snapshot, error) {
	s := snapshot{Start: w.rec.now(), Of: map[string]tally{}}
	rows, err := w.db.QueryContext(ctx, `
		SELECT ch.channelId, c.consumerId, COALESCE(j.dead, 0), COALESCE(j.counted, 0), COALESCE(s.dead_count, 0), COALESCE(d.delta, 0), COALESCE(e.pending, 0)
		FROM consumer c JOIN channel ch ON ch.id = c.channelId
		LEFT JOIN (SELECT consumerId, SUM(status = 1004) dead, SUM(dlqCounted = 1) counted FROM job IGNORE INDEX (uncounted) GROUP BY consumerId) j ON j.consumerId = c.id
		LEFT JOIN (SELECT consumerId, SUM(dlqDelta) delta FROM job FORCE INDEX (uncounted) WHERE dlqDelta IS NOT NULL GROUP BY consumerId) d ON d.consumerId = c.id
		LEFT JOIN dlq_summary s ON s.consumerId = c.id
		LEFT JOIN (SELECT OriginalQueue, IF(PartitionKey = 'delivery', InstanceId, PartitionKey) who, COUNT(*) pending FROM engineDlq WHERE Status = 'Pending' GROUP BY OriginalQueue, who) e
			ON e.OriginalQueue = ch.channelId AND e.who = c.consumerId`)
	if err != nil {
		return s, err
	}
	defer rows.Close()
	for rows.Next() {
		var channel, consumer string
		var t tally
		if err := rows.Scan(&channel, &consumer, &t.Dead, &t.Counted, &t.DeadCount, &t.Delta, &t.Pending); err != nil {
			return s, err
		}
		s.Of[channel+"/"+consumer] = t
	}
	s.End = w.rec.now()
	return s, rows.Err()
}

// sight reads which jobs finished or were shelved in the last seconds.
func (w *witness) sight(ctx context.Context) (sighting, error) {
	s := sighting{Start: w.rec.now()}
	rows, err := w.db.QueryContext(ctx, `SELECT id, status FROM job WHERE status IN (1003, 1004, 1005) AND statusChangedAt > NOW(6) - INTERVAL 3 SECOND`)
	if err != nil {
		return s, err
	}
	defer rows.Close()
	for rows.Next() {
		var id []byte
		var status int
		if err := rows.Scan(&id, &status); err != nil {
			return s, err
		}
		switch status {
		case statusDelivered:
			s.Delivered = append(s.Delivered, jobID(id))
		case statusDead:
			s.Dead = append(s.Dead, jobID(id))
		default:
			s.Shelved = append(s.Shelved, jobID(id))
		}
	}
	s.End = w.rec.now()
	return s, rows.Err()
}

// jobID is the id as the broker shows it.
func jobID(raw []byte) string {
	id, err := xid.FromBytes(raw)
	if err != nil {
		return fmt.Sprintf("%x", raw)
	}
	return id.String()
}

func (w *witness) jobs(ctx context.Context) ([]finalJob, error) {
	rows, err := w.db.QueryContext(ctx, `
		SELECT j.id, COALESCE(m.messageId, ''), COALESCE(ch.channelId, ''), COALESCE(c.consumerId, ''), j.status, j.retryAttemptCount, j.noRetry
		FROM job j LEFT JOIN message m ON m.id = j.messageId LEFT JOIN consumer c ON c.id = j.consumerId LEFT JOIN channel ch ON ch.id = c.channelId`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []finalJob
	for rows.Next() {
		var j finalJob
		var id []byte
		var channel, consumer string
		if err := rows.Scan(&id, &j.Message, &channel, &consumer, &j.Status, &j.Retries, &j.NoRetry); err != nil {
			return nil, err
		}
		j.Job, j.Consumer = jobID(id), channel+"/"+consumer
		out = append(out, j)
	}
	return out, rows.Err()
}

func (w *witness) messages(ctx context.Context) ([]finalMessage, error) {
	rows, err := w.db.QueryContext(ctx, `SELECT ch.channelId, m.messageId, m.dispatchedAt IS NOT NULL FROM message m JOIN channel ch ON ch.id = m.channelId`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []finalMessage
	for rows.Next() {
		var m finalMessage
		if err := rows.Scan(&m.Channel, &m.Message, &m.Dispatched); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, rows.Err()
}

// makeOld has one in two of the consumer's dead letters be two days old from its beginning, as if it had been lying
// there: a run is too short for anything to get old. Nothing else of the death is changed.
func (w *witness) makeOld(ctx context.Context, s *spec) error {
	_, err := w.db.ExecContext(ctx, fmt.Sprintf(`CREATE TRIGGER makeOld BEFORE INSERT ON engineDlq FOR EACH ROW
		SET NEW.LastFailureAtUtc = NEW.LastFailureAtUtc - INTERVAL IF(NEW.OriginalQueue = '%s' AND NEW.InstanceId = '%s' AND CRC32(NEW.RowKey) %% 2 = 0, 2, 0) DAY`,
		s.Channel, s.id))
	return err
}

// letters reads all dead letters of deliveries.
func (w *witness) letters(ctx context.Context) ([]finalLetter, error) {
	rows, err := w.db.QueryContext(ctx, `SELECT RowKey, JobId, CONCAT(OriginalQueue, '/', InstanceId), Status, LastFailureAtUtc < `+aDayAgo+`
		FROM engineDlq WHERE PartitionKey = 'delivery'`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []finalLetter
	for rows.Next() {
		var l finalLetter
		var job []byte
		if err := rows.Scan(&l.Letter, &job, &l.Consumer, &l.Status, &l.Old); err != nil {
			return nil, err
		}
		l.Job = jobID(job)
		out = append(out, l)
	}
	return out, rows.Err()
}

const (
	aDayAgo    = `NOW(6) - INTERVAL 1 DAY`
	oldPending = `SELECT COUNT(*) FROM engineDlq WHERE PartitionKey = 'delivery' AND Status = 'Pending' AND LastFailureAtUtc < ` + aDayAgo
)

// left counts what still moves: jobs QUEUED or INFLIGHT and schedules that are not dispatched.
func (w *witness) left(ctx context.Context) (map[string]int64, error) {
	return w.counts(ctx, `
		SELECT CONCAT(ch.channelId, '/', c.consumerId, ' ', IF(j.status = 1001, 'QUEUED', 'INFLIGHT')), COUNT(*)
		FROM job j JOIN consumer c ON c.id = j.consumerId JOIN channel ch ON ch.id = c.channelId
		WHERE j.status IN (1001, 1002) GROUP BY 1
		UNION ALL SELECT 'schedules', COUNT(*) FROM schedule WHERE dispatchedAt IS NULL HAVING COUNT(*) > 0`)
}

// byStatus counts every consumer's jobs by status.
func (w *witness) byStatus(ctx context.Context) (map[string]int64, error) {
	return w.counts(ctx, `
		SELECT CONCAT(ch.channelId, '/', c.consumerId, ' ', CASE j.status WHEN 1001 THEN 'QUEUED' WHEN 1002 THEN 'INFLIGHT'
			WHEN 1003 THEN 'DELIVERED' WHEN 1004 THEN 'DEAD' ELSE 'SHELVED' END), COUNT(*)
		FROM job j JOIN consumer c ON c.id = j.consumerId JOIN channel ch ON ch.id = c.channelId GROUP BY 1`)
}

func (w *witness) counts(ctx context.Context, query string) (map[string]int64, error) {
	rows, err := w.db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[string]int64{}
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			return nil, err
		}
		out[name] = n
	}
	return out, rows.Err()
}

func (w *witness) number(ctx context.Context, query string, args ...any) (int64, error) {
	var n int64
	return n, w.db.QueryRowContext(ctx, query, args...).Scan(&n)
}
