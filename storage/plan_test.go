package storage_test

import (
	"database/sql"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// thousands is a table of the numbers 0 to 99,999, in n.
const thousands = `(SELECT a.d + 10*b.d + 100*c.d + 1000*e.d + 10000*f.d AS n FROM ` + digits + ` a, ` + digits + ` b, ` + digits + ` c, ` + digits + ` e, ` + digits + ` f) numbers`

const digits = `(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
	UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)`

// planWorld has 100,000 jobs of five consumers in every state, 30,000 of them dead, and 20,000 scheduled messages.
type planWorld struct {
	*world
	recorded  *recorder
	consumers []*storage.Consumer
}

func newPlanWorld(t *testing.T) *planWorld {
	t.Helper()
	p := &planWorld{recorded: &recorder{}}
	p.world = newWorld(t, p.recorded.wrap)
	// One connection: its counters tell what each call read.
	one, err := storage.Open(storage.Options{DSN: p.dsn, MaxOpenConns: 1, WrapConnector: p.recorded.wrap})
	p.ok(err)
	t.Cleanup(func() { _ = one.Close() })
	p.Store = one
	for i := range 5 {
		p.consumers = append(p.consumers, p.consumer(fmt.Sprintf("k%d", i), storage.TypePush))
	}
	ids := `UNHEX(LPAD(HEX(n + 1), 24, '0'))`
	p.exec(`INSERT INTO message (id, channelId, producerId, messageId, contentType, priority, receivedAt, dispatchedAt)
		SELECT `+ids+`, ?, ?, n, 'text/plain', 0, NOW(6), IF(n < 1000, NOW(6), NULL) FROM `+thousands+` WHERE n < 21000`, p.channel.Key, p.producer.Key)
	p.exec(`INSERT INTO message_payload (messageId, headers, body) SELECT ` + ids + `, '{}', 'x' FROM ` + thousands + ` WHERE n < 21000`)
	p.exec(`INSERT INTO schedule (messageId, channelId, scheduledFor, dispatchedAt)
		SELECT `+ids+`, ?, NOW(6) - INTERVAL 1 DAY + INTERVAL n * 10 SECOND, IF(n % 4 = 0, NOW(6), NULL) FROM `+thousands+` WHERE n BETWEEN 1000 AND 20999`, p.channel.Key)
	// By the tens: 0-2 dead (100 of them owed to the count), 3-4 ready, 5 and 6 waiting to be retried (half of them
	// due), 7 in flight (half of them lost) in the first thousands, the rest delivered.
	p.exec(`INSERT INTO job (id, messageId, consumerId, status, statusChangedAt, dueAt, precedence, retryAttemptCount, leaseToken, dlqCounted)
		SELECT `+ids+`, UNHEX(LPAD(HEX(n % 1000 + 1), 24, '0')), ? + n % 5, status, NOW(6) - INTERVAL n SECOND,
			IF(due, NOW(6) + INTERVAL 100000 - 2 * n SECOND, NULL), n % 3, 5, n, IF(status = 1004, n % 1000 <> 0, 0)
		FROM (SELECT n, ELT(n DIV 10 % 10 + 1, 1004, 1004, 1004, 1001, 1001, 1001, 1001, IF(n % 10000 < 500, 1002, 1003), 1003, 1003) AS status,
			n DIV 10 % 10 IN (5, 6) OR n DIV 10 % 10 = 7 AND n % 10000 < 500 AS due FROM `+thousands+`) kinds`, p.consumers[0].Key)
	p.exec(`UPDATE dlq_summary s SET dead_count = (SELECT COUNT(*) FROM job WHERE consumerId = s.consumerId AND dlqCounted = 1)`)
	p.exec(`INSERT INTO tally (kind, refId, shard, n) SELECT 1, consumerId, 0, COUNT(*) FROM job GROUP BY consumerId`)
	p.exec(`INSERT INTO tally (kind, refId, shard, n) SELECT 2, consumerId, 0, COUNT(*) FROM job WHERE status = 1003 GROUP BY consumerId`)
	for _, table := range []string{"job", "message", "schedule", "message_payload"} {
		p.analyze(table)
	}
	p.recorded.take()
	return p
}

// planRow is a line of EXPLAIN.
type planRow struct{ table, access, key, extra string }

// explained is a statement with its plan.
type explained struct {
	statement
	plan []planRow
}

// reads tells whether the line of the plan reads jobs or schedules by a key.
func (e explained) reads(line planRow) bool {
	tables := []string{"job", "j"}
	if strings.Contains(e.query, "schedule") {
		tables = append(tables, "schedule", "s")
	}
	return slices.Contains(tables, line.table) && line.key != ""
}

// explain returns the plans of what the store sent since the last call, as far as it reads jobs or schedules.
func (p *planWorld) explain() (out []explained) {
	p.t.Helper()
	for _, s := range p.recorded.take() {
		first := strings.Fields(s.query)[0]
		if !slices.Contains([]string{"SELECT", "UPDATE", "DELETE"}, first) || !strings.Contains(s.query, "job") && !strings.Contains(s.query, "schedule") {
			continue
		}
		rows, err := p.DB().QueryContext(p.ctx, "EXPLAIN FORMAT=TRADITIONAL "+s.query, s.args...)
		if err != nil {
			p.t.Fatalf("EXPLAIN %s: %v", s.query, err)
		}
		out = append(out, explained{s, readPlan(p.t, rows)})
	}
	p.recorded.take()
	return out
}

// handlerReads is the number of rows and index entries that the connection has read so far.
func (p *planWorld) handlerReads() (sum int64) {
	p.t.Helper()
	rows, err := p.DB().QueryContext(p.ctx, `SHOW SESSION STATUS LIKE 'Handler_read%'`)
	p.ok(err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var n int64
		p.ok(rows.Scan(&name, &n))
		sum += n
	}
	p.ok(rows.Err())
	return sum
}

// reads is the number of rows and index entries that call read.
func (p *planWorld) reads(call func() error) int64 {
	p.t.Helper()
	p.handlerReads() // the first one on a connection may read more
	first := p.handlerReads()
	before := p.handlerReads()
	err := call()
	after := p.handlerReads()
	p.ok(err)
	return after - before - (before - first)
}

func readPlan(t testing.TB, rows *sql.Rows) (plan []planRow) {
	t.Helper()
	defer func() { _ = rows.Close() }()
	columns := must(rows.Columns())
	for rows.Next() {
		values := make([]sql.NullString, len(columns))
		dest := make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
		field := func(name string) string { return values[slices.Index(columns, name)].String }
		plan = append(plan, planRow{field("table"), field("type"), field("key"), field("Extra")})
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// TestPlans holds every statement that reads or locks many jobs to its index and to a number of reads, with 100,000
// jobs in the table: no scan, and above all no filesort under a locking read, which would lock all that it sorts.
func TestPlans(t *testing.T) {
	t.Parallel()
	p := newPlanWorld(t)
	k := p.consumers[0]
	dead, _, err := p.DeadJobs(p.ctx, k.Key, nil, 500)
	p.ok(err)
	middle := dead[len(dead)-1]
	page := func(cur *storage.Cursor) func() error {
		return func() error { _, _, err := p.DeadJobs(p.ctx, k.Key, cur, 50); return err }
	}
	lease := p.lease(longLease)
	var claimed []storage.ClaimedJob
	policy := storage.LeasePolicy{MaxRetry: 6, Type: storage.TypePush, Limit: 100}
	yes := true
	tests := []struct {
		name  string
		call  func() error
		keys  string // of job or schedule that the plans use
		reads int64  // at most
		sorts bool   // it sorts few entries of the key, in a statement that locks nothing
	}{
		{"FindWork", func() error { _, err := p.FindWork(p.ctx); return err }, "claim", 60, false},
		{"NextDue", func() error { _, err := p.NextDue(p.ctx, k.Key); return err }, "claim", 10, false},
		{"JobStatus", func() error { _, err := p.JobStatus(p.ctx); return err }, "changed claim uncounted", 1500, true},
		{"DeadCounts", func() error { _, err := p.DeadCounts(p.ctx); return err }, "uncounted", 300, true},
		{"DeadJobs", page(nil), "PRIMARY changed", 400, false},
		{"DeadJobs, older", page(&storage.Cursor{Older: true, At: middle.StatusChangedAt, ID: middle.ID}), "PRIMARY changed", 400, false},
		{"DeadJobs, newer", page(&storage.Cursor{At: middle.StatusChangedAt, ID: middle.ID}), "PRIMARY changed", 400, false},
		{"QueuedJobs", func() error { _, err := p.QueuedJobs(p.ctx, k.Key, 100); return err }, "PRIMARY claim", 1400, false},
		{"Message", func() error { _, _, err := p.Message(p.ctx, p.channel.Key, "7"); return err }, "PRIMARY message", 1000, true},
		{"Messages", func() error {
			_, _, err := p.Messages(p.ctx, p.channel.Key, &storage.Cursor{Older: true, ID: idOf(800)}, 25)
			return err
		}, "", 60, false},
		{"ScheduledMessages", func() error {
			_, _, err := p.ScheduledMessages(p.ctx, p.channel.Key, &yes, &storage.Cursor{Older: true, ID: idOf(9000)}, 25)
			return err
		}, "newest", 300, false},
		{"MessageCounts", func() error { _, err := p.MessageCounts(p.ctx, p.channel.Key); return err }, "status", 20_100, false},
		{"DeadDrift", func() error { _, err := p.DeadDrift(p.ctx, k.Key); return err }, "changed uncounted", 6200, false},
		{"Prunable", func() error { _, err := p.Prunable(p.ctx, time.Hour, storage.ID{}, 20); return err }, "message", 1000, false},
		{"Claim", func() (err error) { claimed, err = p.Claim(p.ctx, k.Key, lease, 100); return err }, "PRIMARY claim", 1000, true},
		{"Finish", func() error { _, err := p.Finish(p.ctx, 0, deliveries(claimed)); return err }, "PRIMARY", 300, false},
		{"Finish again", func() error { _, err := p.Finish(p.ctx, 0, deliveries(claimed)); return err }, "PRIMARY", 500, false},
		{"ReapLeases", func() error { _, err := p.ReapLeases(p.ctx, k.Key, policy); return err }, "PRIMARY claim", 500, false},
		{"CountBatch", func() error { _, err := p.CountBatch(p.ctx, 50); return err }, "PRIMARY uncounted", 300, false},
		{"RequeueAll", func() error { _, err := p.RequeueAll(p.ctx, p.consumers[1].Key, "consumer"); return err }, "PRIMARY changed", 30_000, false},
		{"PurgeAll", func() error { _, err := p.PurgeAll(p.ctx, p.consumers[2].Key, ourMaxRetry, "consumer"); return err }, "PRIMARY changed", 30_000, false},
		{"DispatchScheduled", func() error {
			_, err := p.DispatchScheduled(p.ctx, 0, 100, func(uint32) []uint32 { return []uint32{k.Key} })
			return err
		}, "PRIMARY due", 600, false},
		{"DeleteConsumer", func() error { return p.DeleteConsumer(p.ctx, p.consumers[3].Key, p.consumers[3].ChangedAt) }, "", 100, false}, // of which MySQL reads most in its dictionary, for the keys that refer to a consumer
		{"RemoveJobs", func() error { _, _, err := p.RemoveJobs(p.ctx, 100); return err }, "PRIMARY claim", 500, false},
	}
	for _, tt := range tests {
		p.recorded.take()
		if n := p.reads(tt.call); n > tt.reads {
			t.Errorf("%s read %d rows or index entries, at most %d were expected", tt.name, n, tt.reads)
		}
		keys := map[string]bool{}
		for _, e := range p.explain() {
			for _, line := range e.plan {
				locks := !strings.HasPrefix(strings.TrimSpace(e.query), "SELECT") || strings.Contains(e.query, "FOR UPDATE")
				if sorts := strings.Contains(line.extra, "filesort"); sorts && (locks || e.reads(line) && !tt.sorts) {
					t.Errorf("%s sorts: %+v in\n%s", tt.name, line, e.query)
				}
				if e.reads(line) {
					keys[line.key] = true
				}
			}
		}
		if got := strings.Join(slices.Sorted(maps.Keys(keys)), " "); got != tt.keys {
			t.Errorf("%s uses the keys %q, expected %q", tt.name, got, tt.keys)
		}
	}
}

// deliveries are the outcomes of attempts that all went well.
func deliveries(jobs []storage.ClaimedJob) []storage.Outcome {
	out := make([]storage.Outcome, len(jobs))
	for i, j := range jobs {
		out[i] = storage.Outcome{JobID: j.ID, Token: j.Token, ConsumerKey: j.ConsumerKey, Verdict: storage.Delivered}
	}
	return out
}

// idOf is the id that the n-th row of a planWorld has.
func idOf(n int) (id storage.ID) {
	binary.BigEndian.PutUint64(id[4:], uint64(n)+1)
	return id
}

// analyze refreshes the optimiser's statistics; the statement answers with a table, which nobody reads.
func (p *planWorld) analyze(table string) {
	rows, err := p.DB().QueryContext(p.ctx, `ANALYZE TABLE `+table)
	p.ok(err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		continue
	}
	p.ok(rows.Err())
}
