package storage_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
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
	for i := range 5 {
		p.consumers = append(p.consumers, p.consumer(fmt.Sprintf("k%d", i), storage.TypePush))
	}
	ids := `UNHEX(LPAD(HEX(n + 1), 24, '0'))`
	p.exec(`INSERT INTO message (id, channelId, producerId, messageId, contentType, priority, receivedAt, dispatchedAt)
		SELECT `+ids+`, ?, ?, n, 'text/plain', 0, NOW(6), IF(n < 1000, NOW(6), NULL) FROM `+thousands+` WHERE n < 21000`, p.channel.Key, p.producer.Key)
	p.exec(`INSERT INTO message_payload (messageId, headers, body) SELECT ` + ids + `, '{}', 'x' FROM ` + thousands + ` WHERE n < 21000`)
	p.exec(`INSERT INTO schedule (messageId, channelId, scheduledFor, dispatchedAt)
		SELECT `+ids+`, ?, NOW(6) - INTERVAL 1 DAY + INTERVAL n * 10 SECOND, IF(n % 4 = 0, NOW(6), NULL) FROM `+thousands+` WHERE n BETWEEN 1000 AND 20999`, p.channel.Key)
	// By the tens: 0-2 dead (every hundredth owed to the count), 3-4 ready, 5 and 6 waiting to be retried (half of
	// them due), 7 in flight (half of them lost), 8-9 delivered.
	p.exec(`INSERT INTO job (id, messageId, consumerId, status, statusChangedAt, dueAt, precedence, retryAttemptCount, leaseToken, dlqCounted)
		SELECT `+ids+`, UNHEX(LPAD(HEX(n % 1000 + 1), 24, '0')), ? + n % 5, status, NOW(6) - INTERVAL n SECOND,
			IF(due, NOW(6) + INTERVAL 100000 - 2 * n SECOND, NULL), n % 3, 5, n, IF(status = 1004, n % 1000 >= 10, 0)
		FROM (SELECT n, ELT(n DIV 10 % 10 + 1, 1004, 1004, 1004, 1001, 1001, 1001, 1001, 1002, 1003, 1003) AS status,
			n DIV 10 % 10 IN (5, 6, 7) AS due FROM `+thousands+`) kinds`, p.consumers[0].Key)
	p.exec(`UPDATE dlq_summary s SET dead_count = (SELECT COUNT(*) FROM job WHERE consumerId = s.consumerId AND dlqCounted = 1)`)
	p.exec(`INSERT INTO tally (kind, refId, shard, n) SELECT 1, consumerId, 0, COUNT(*) FROM job GROUP BY consumerId`)
	p.exec(`INSERT INTO tally (kind, refId, shard, n) SELECT 2, consumerId, 0, COUNT(*) FROM job WHERE status = 1003 GROUP BY consumerId`)
	for _, table := range []string{"job", "message", "schedule", "message_payload"} {
		if os.Getenv("NOAN") != "" { break }
		rows, err := p.DB().QueryContext(p.ctx, `ANALYZE TABLE `+table)
		p.ok(err)
		p.ok(rows.Close())
	}
	p.recorded.take()
	return p
}

// planRow is a line of EXPLAIN.
type planRow struct{ table, access, key, extra string }

// explain returns the plans of what the store sent since the last call that reads the job or schedule table.
func (p *planWorld) explain() (statements []statement, plans [][]planRow) {
	p.t.Helper()
	for _, s := range p.recorded.take() {
		first, _, _ := strings.Cut(strings.TrimSpace(s.query), " ")
		if first == "SET" || first == "INSERT" || !strings.Contains(s.query, "job") && !strings.Contains(s.query, "schedule") {
			continue
		}
		rows, err := p.DB().QueryContext(p.ctx, "EXPLAIN FORMAT=TRADITIONAL "+s.query, s.args...)
		if err != nil {
			p.t.Fatalf("EXPLAIN %s: %v", s.query, err)
		}
		statements, plans = append(statements, s), append(plans, readPlan(p.t, rows))
	}
	p.recorded.take()
	return statements, plans
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

// TestPlans holds every statement that reads many jobs or locks them to its index: no scan of a table, and above all
// no filesort, which under a locking read would lock all that it sorts.
func TestPlans(t *testing.T) {
	t.Parallel()
	p := newPlanWorld(t)
	k := p.consumers[0]
	page := func(cur *storage.Cursor) func() error {
		return func() error { _, _, err := p.DeadJobs(p.ctx, k.Key, cur, 50); return err }
	}
	at := must(p.Job(p.ctx, idOf(500))).StatusChangedAt
	tests := []struct {
		name string
		call func() error
		uses []string // keys of job or schedule that the plans must use, in the order of the statements
		sort bool     // it may sort a page after the LIMIT, or what it groups
	}{
		{name: "Claim", call: func() error { _, err := p.Claim(p.ctx, k.Key, p.lease(longLease), 100); return err },
			uses: []string{"claim", "claim", "PRIMARY", "PRIMARY"}, sort: false},
		{name: "ReapLeases", call: func() error {
			_, err := p.ReapLeases(p.ctx, k.Key, storage.LeasePolicy{MaxRetry: 6, Type: storage.TypePush, Limit: 100})
			return err
		}, uses: []string{"claim", "PRIMARY"}},
		{name: "FindWork", call: func() error { _, err := p.FindWork(p.ctx); return err }, uses: []string{"claim"}},
		{name: "QueuedJobs", call: func() error { _, err := p.QueuedJobs(p.ctx, k.Key, 100); return err }, uses: []string{"claim"}, sort: true},
		{name: "DeadJobs", call: page(nil), uses: []string{"changed"}, sort: true},
		{name: "DeadJobs older", call: page(&storage.Cursor{Older: true, At: at, ID: idOf(500)}), uses: []string{"changed"}, sort: true},
		{name: "DeadJobs newer", call: page(&storage.Cursor{At: at, ID: idOf(500)}), uses: []string{"changed"}, sort: true},
		{name: "DeadCounts", call: func() error { _, err := p.DeadCounts(p.ctx); return err }, uses: []string{"uncounted"}, sort: true},
		{name: "JobStatus", call: func() error { _, err := p.JobStatus(p.ctx); return err }, uses: []string{"changed"}, sort: true},
		{name: "CountBatch", call: func() error { _, err := p.CountBatch(p.ctx, 100); return err }, uses: []string{"uncounted", "PRIMARY"}},
		{name: "RequeueAll", call: func() error { _, err := p.RequeueAll(p.ctx, p.consumers[1].Key); return err }, uses: nil},
		{name: "PurgeAll", call: func() error { _, err := p.PurgeAll(p.ctx, p.consumers[2].Key, ourMaxRetry); return err }, uses: nil},
		{name: "DispatchScheduled", call: func() error {
			_, err := p.DispatchScheduled(p.ctx, 0, 100, func(uint32) []uint32 { return []uint32{k.Key} })
			return err
		}, uses: []string{"due", "PRIMARY"}},
		{name: "MessageCounts", call: func() error { _, err := p.MessageCounts(p.ctx, p.channel.Key); return err }, uses: []string{"status"}},
		{name: "DeadDrift", call: func() error { _, err := p.DeadDrift(p.ctx, k.Key); return err }},
	}
	for _, tt := range tests {
		p.recorded.take()
		if err := tt.call(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		statements, plans := p.explain()
		for i, plan := range plans {
			t.Log(tt.name, len(statements[i].query), "\n", statements[i].query[:min(300, len(statements[i].query))])
			for _, line := range plan {
				t.Logf("     %+v", line)
			}
		}
	}
}

func idOf(n int) (id storage.ID) {
	n++
	for i := len(id) - 1; n > 0; i-- {
		id[i] = byte(n)
		n >>= 8
	}
	return id
}

var _ = time.Now
var _ context.Context
