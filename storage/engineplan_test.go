package storage_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

const fewEngineRows = 60_000

// engineRows is how many dead letters and history entries the plans of lists are looked at with: a few, or what
// REDRIVE_TEST_ENGINE_ROWS says. What may be read for a page does not grow with it.
func engineRows(t *testing.T) int {
	t.Helper()
	text := os.Getenv("REDRIVE_TEST_ENGINE_ROWS")
	if text == "" {
		return fewEngineRows
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < fewEngineRows || n > 10_000_000 {
		t.Fatalf("REDRIVE_TEST_ENGINE_ROWS: %q", text)
	}
	return n
}

// newEnginePlanWorld has so many dead letters and as many history entries of four engines and 20 instances in every
// state. The dead letters are in the order of time; the history covers a month, a day a partition.
func newEnginePlanWorld(t *testing.T, rows int) *planWorld {
	t.Helper()
	p := &planWorld{recorded: &recorder{}}
	p.world = newWorld(t, p.recorded.wrap)
	one, err := storage.Open(storage.Options{DSN: p.dsn, MaxOpenConns: 1, WrapConnector: p.recorded.wrap})
	p.ok(err)
	t.Cleanup(func() { _ = one.Close() })
	p.Store = one
	at := fmt.Sprintf(`NOW(6) - INTERVAL n * %d MICROSECOND`, 30*24*time.Hour.Microseconds()/int64(rows))
	const batch = 100_000 // rows in a transaction
	for first := 0; first < rows; first += batch {
		p.exec(`INSERT INTO engineDlq (PartitionKey, RowKey, InstanceId, OriginalQueue, OriginalMessage, ErrorMessage, DequeueCount, FirstFailureAtUtc, LastFailureAtUtc, Status, ResolvedAtUtc, CorrelationId)
		SELECT ELT(n % 4 + 1, 'alerts', 'delivery', 'hmac', 'tls'), CONCAT('r', n), CONCAT('i', n DIV 4 % 20), 'q', '{}', 'e', 1, `+at+`, `+at+`,
			ELT(n DIV 80 % 3 + 1, 'Pending', 'Resolved', 'Expired'), IF(n DIV 80 % 3 = 0, NULL, `+at+`), CONCAT('c', n) FROM (SELECT n + ? AS n FROM `+thousands+`) shifted WHERE n < ?`, first, rows)
	}
	// Days, as EnsureHistoryPartitions makes them when it is called every day.
	var parts []string
	var now time.Time
	p.ok(p.DB().QueryRowContext(p.ctx, `SELECT NOW(6)`).Scan(&now))
	for d := now.Truncate(24*time.Hour).AddDate(0, 0, -30); !d.After(now.AddDate(0, 0, 2)); d = d.AddDate(0, 0, 1) {
		parts = append(parts, `PARTITION p`+d.Format("20060102")+` VALUES LESS THAN ('`+d.AddDate(0, 0, 1).Format(time.DateTime)+`')`)
	}
	p.exec(`ALTER TABLE engineHistory REORGANIZE PARTITION pmax INTO (` + strings.Join(parts, `, `) + `, PARTITION pmax VALUES LESS THAN (MAXVALUE))`)
	for first := 0; first < rows; first += batch {
		p.exec(`INSERT INTO engineHistory (PartitionKey, RowKey, InstanceId, Operation, Status, DurationMs, CreatedAtUtc, CorrelationId)
		SELECT ELT(n % 4 + 1, 'alerts', 'delivery', 'hmac', 'tls'), CONCAT('c', n, '-', DATE_FORMAT(`+at+`, '%Y%m%dT%H%i%s.%fZ')), CONCAT('i', n DIV 4 % 20),
			ELT(n DIV 80 % 3 + 1, 'deliver', 'notify', 'rotate'), ELT(n DIV 240 % 2 + 1, 'Succeeded', 'Failed'), 1, `+at+`, CONCAT('c', n DIV 100) FROM (SELECT n + ? AS n FROM `+thousands+`) shifted WHERE n < ?`, first, rows)
	}
	p.analyze("engineDlq")
	p.analyze("engineHistory")
	p.recorded.take()
	return p
}

// served fails the test unless each statement of call uses a key of the engine tables throughout, sorts none of their rows,
// and call reads no more than so many rows and index entries.
func (p *planWorld) served(name string, most int64, call func() error) {
	p.t.Helper()
	p.recorded.take()
	if n := p.reads(call); n > most {
		p.t.Errorf("%s read %d rows or index entries, at most %d were expected", name, n, most)
	}
	found := false
	for _, s := range p.recorded.take() {
		if !strings.Contains(s.query, "engineDlq") && !strings.Contains(s.query, "engineHistory") || strings.HasPrefix(s.query, "INSERT") {
			continue
		}
		rows, err := p.DB().QueryContext(p.ctx, "EXPLAIN FORMAT=TRADITIONAL "+s.query, s.args...)
		if err != nil {
			p.t.Fatalf("EXPLAIN %s: %v", s.query, err)
		}
		for _, line := range readPlan(p.t, rows) {
			if !slices.Contains([]string{"engineDlq", "engineHistory", "d", "h", "x"}, line.table) {
				continue // derived: a page of each probe
			}
			found = true
			if line.access == "ALL" || line.key == "" || strings.Contains(line.extra, "filesort") || strings.Contains(line.extra, "temporary") {
				p.t.Errorf("%s: %+v in\n%s", name, line, s.query[:min(len(s.query), 300)])
			}
		}
	}
	if p.recorded.take(); !found {
		p.t.Errorf("%s: no plan reads a table of engines", name)
	}
}

// TestPlansOfEngineLists holds every combination of filters, on the first page and in the middle, to its index.
func TestPlansOfEngineLists(t *testing.T) {
	t.Parallel()
	p := newEnginePlanWorld(t, engineRows(t))
	const limit = 50
	var now time.Time
	p.ok(p.DB().QueryRowContext(p.ctx, `SELECT NOW(6)`).Scan(&now))
	from, to := now.AddDate(0, 0, -20), now.AddDate(0, 0, -10)
	on := func(i, bit int, v string) string {
		if i>>bit&1 == 0 {
			return ""
		}
		return v
	}
	for i := range 1 << 6 {
		var f, u *time.Time
		if i>>3&1 == 1 {
			f, u = &from, &to
		}
		var cur *storage.TableCursor
		if i>>4&1 == 1 {
			cur = &storage.TableCursor{At: now.AddDate(0, 0, -15), Engine: "hmac", RowKey: "r5"}
		}
		if i>>5 == 0 {
			df := storage.DLQFilter{Engine: on(i, 0, "hmac"), InstanceID: on(i, 1, "i7"), Status: storage.DLQStatus(on(i, 2, "Expired")), From: f, To: u}
			p.served(fmt.Sprintf("dead letters of %+v", df), 4000, func() error {
				rows, _, err := p.ListDeadLetters(p.ctx, df, cur, limit)
				if len(rows) < 40 {
					t.Errorf("%d rows of %+v", len(rows), df)
				}
				return err
			})
		}
		hf := storage.HistoryFilter{Engine: on(i, 0, "hmac"), InstanceID: on(i, 1, "i7"), Status: storage.HistoryStatus(on(i, 2, "Failed")), Operation: on(i, 5, "notify"), From: f, To: u}
		p.served(fmt.Sprintf("history of %+v", hf), 12_000, func() error { _, _, err := p.ListHistory(p.ctx, hf, cur, limit); return err })
	}
	for _, hf := range []storage.HistoryFilter{{CorrelationID: "c7"}, {CorrelationID: "c7", Engine: "hmac", Status: "Failed", From: &from}} {
		p.served(fmt.Sprintf("history of %+v", hf), 500, func() error { _, _, err := p.ListHistory(p.ctx, hf, nil, limit); return err })
	}
}

// TestPlansOfEngineTables holds what is read and changed one by one, or in batches, to its index.
func TestPlansOfEngineTables(t *testing.T) {
	t.Parallel()
	p := newEnginePlanWorld(t, fewEngineRows)
	var now time.Time
	p.ok(p.DB().QueryRowContext(p.ctx, `SELECT NOW(6)`).Scan(&now))
	first := must2(p.ListHistory(p.ctx, storage.HistoryFilter{}, nil, 1))(new(bool))[0]
	p.served("an entry", 200, func() error { _, err := p.HistoryEntry(p.ctx, first.Engine, first.RowKey); return err })
	for _, n := range []int{1, 200} {
		entries := make([]storage.HistoryEntry, n)
		for i := range entries {
			entries[i] = entry("hmac", "rotate", now.AddDate(0, 0, -i%20))
		}
		p.served(fmt.Sprintf("adding %d entries", n), int64(20+12*n), func() error { _, err := p.AddHistory(p.ctx, entries); return err })
	}
	p.served("a dead letter", 20, func() error { _, err := p.DeadLetter(p.ctx, "delivery", "r1"); return err })
	p.served("a dry run", 4000, func() error { _, _, err := p.PruneDeadLetters(p.ctx, time.Hour, 100, true); return err })
	p.served("pruning", 4000, func() error { _, _, err := p.PruneDeadLetters(p.ctx, time.Hour, 100, false); return err })
	k := p.engine("hmac", "q")
	p.served("an engine's drift", 15_000, func() error { _, _, err := p.DeadLetterDrift(p.ctx, k.Key); return err })
	p.served("an engine's repair", 15_000, func() error { _, err := p.RepairDeadCount(p.ctx, k.Key); return err })
	p.served("a retry", 100, func() error {
		_, err := p.ResolveDeadLetter(p.ctx, "hmac", "r2", storage.Resolution{Status: storage.DLQResolved})
		return err
	})
}
