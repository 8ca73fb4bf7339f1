package storage_test

import (
	"slices"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// pager walks over one of the lists.
type pager struct {
	page   func(cur *storage.Cursor, limit int) ([]storage.ID, storage.Paging, error)
	cursor func(id storage.ID, older bool) *storage.Cursor
}

// older walks from the newest to the oldest and returns the pages; between is called after each.
func (p pager) older(t *testing.T, limit int, between func(page int)) (pages [][]storage.ID) {
	t.Helper()
	var cur *storage.Cursor
	for {
		ids, paging, err := p.page(cur, limit)
		if err != nil {
			t.Fatal(err)
		}
		if paging.HasNewer != (cur != nil) {
			t.Errorf("page %d has newer: %v", len(pages), paging.HasNewer)
		}
		if len(ids) > limit || paging.HasOlder && len(ids) < limit {
			t.Errorf("page %d has %d entries of %d", len(pages), len(ids), limit)
		}
		pages = append(pages, ids)
		if !paging.HasOlder {
			return pages
		}
		if between != nil {
			between(len(pages))
		}
		cur = p.cursor(ids[len(ids)-1], true)
	}
}

// newer walks back from an entry to the newest.
func (p pager) newer(t *testing.T, from storage.ID, limit int) (all []storage.ID) {
	t.Helper()
	for {
		ids, paging, err := p.page(p.cursor(from, false), limit)
		if err != nil {
			t.Fatal(err)
		}
		if !paging.HasOlder {
			t.Error("the entry that one came from is not older")
		}
		all = append(slices.Clone(ids), all...)
		if !paging.HasNewer {
			return all
		}
		from = ids[0]
	}
}

// lists are a channel's three lists with n entries each; the ids are the newest first.
func lists(t *testing.T, w *world, n int) map[string]struct {
	pager
	ids    []storage.ID
	add    func() storage.ID
	remove func(storage.ID)
} {
	t.Helper()
	k := w.consumer("k", storage.TypePush)
	at := map[storage.ID]time.Time{}
	kill := func() storage.ID {
		id := w.dead(1, k)[0]
		at[id] = must(w.Job(w.ctx, id)).StatusChangedAt
		return id
	}
	dead := make([]storage.ID, n)
	for i := range dead {
		dead[i] = kill()
	}
	// Some died in one statement: the id decides.
	w.exec(`UPDATE job SET statusChangedAt = ? WHERE id IN (?, ?, ?)`, at[dead[3]], dead[3], dead[4], dead[5])
	at[dead[4]], at[dead[5]] = at[dead[3]], at[dead[3]]
	say := func() storage.ID {
		m := w.message()
		w.ok(w.Accept(w.ctx, 0, storage.Lease{}, []*storage.NewMessage{m}))
		return m.Key
	}
	w.exec(`DELETE FROM message`)
	jobs := w.number(`SELECT COUNT(*) FROM job`)
	said := make([]storage.ID, n)
	for i := range said {
		said[i] = say()
	}
	// The dead jobs' messages are old ones of another channel.
	elsewhere := must(w.PutChannel(w.ctx, storage.PutStakeholder{ID: "elsewhere", Name: "e", Token: "t"})).Key
	w.exec(`INSERT INTO message (id, channelId, producerId, messageId, contentType, priority, receivedAt, dispatchedAt)
		SELECT messageId, ?, ?, HEX(messageId), 'x', 0, NOW(6), NOW(6) FROM job`, elsewhere, w.producer.Key)
	planned := w.scheduled(n, time.Hour)
	if jobs != int64(n) {
		t.Fatalf("%d jobs", jobs)
	}
	for _, ids := range [][]storage.ID{dead, said, planned} {
		slices.Reverse(ids)
	}
	byKey := func(id storage.ID, older bool) *storage.Cursor { return &storage.Cursor{Older: older, ID: id} }
	refs := func(list []storage.MessageRef, paging storage.Paging, err error) ([]storage.ID, storage.Paging, error) {
		var ids []storage.ID
		for _, r := range list {
			ids = append(ids, r.Key)
		}
		return ids, paging, err
	}
	type list = struct {
		pager
		ids    []storage.ID
		add    func() storage.ID
		remove func(storage.ID)
	}
	return map[string]list{
		"dead jobs": {pager{func(cur *storage.Cursor, limit int) ([]storage.ID, storage.Paging, error) {
			list, paging, err := w.DeadJobs(w.ctx, k.Key, cur, limit)
			var ids []storage.ID
			for _, j := range list {
				ids = append(ids, j.ID)
			}
			return ids, paging, err
		}, func(id storage.ID, older bool) *storage.Cursor {
			return &storage.Cursor{Older: older, ID: id, At: at[id]}
		}}, dead, kill, func(id storage.ID) { w.ok(w.PurgeOne(w.ctx, k.Key, id, 0, "consumer")) }},
		"messages": {pager{func(cur *storage.Cursor, limit int) ([]storage.ID, storage.Paging, error) {
			return refs(w.Messages(w.ctx, w.channel.Key, cur, limit))
		}, byKey}, said, say, func(id storage.ID) { w.exec(`DELETE FROM message WHERE id = ?`, id) }},
		"scheduled messages": {pager{func(cur *storage.Cursor, limit int) ([]storage.ID, storage.Paging, error) {
			return refs(w.ScheduledMessages(w.ctx, w.channel.Key, nil, cur, limit))
		}, byKey}, planned, func() storage.ID { return w.scheduled(1, time.Hour)[0] }, func(id storage.ID) { w.exec(`DELETE FROM schedule WHERE messageId = ?`, id) }},
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	const n = 23
	for _, name := range []string{"dead jobs", "messages", "scheduled messages"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lists(t, newWorld(t, nil), n)[name]
			for _, limit := range []int{1, 7, 22, 23, 24, 100} {
				pages := l.older(t, limit, nil)
				if got := slices.Concat(pages...); !slices.Equal(got, l.ids) {
					t.Errorf("by %d: %v, want %v", limit, got, l.ids)
				}
				if want := (n + limit - 1) / limit; len(pages) != want {
					t.Errorf("by %d: %d pages, want %d", limit, len(pages), want)
				}
				if back := l.newer(t, l.ids[n-1], limit); !slices.Equal(back, l.ids[:n-1]) {
					t.Errorf("back by %d: %v, want %v", limit, back, l.ids[:n-1])
				}
			}
			if ids, paging, err := l.page(l.cursor(l.ids[0], false), 5); len(ids) != 0 || paging.HasNewer || err != nil {
				t.Errorf("newer than the newest: %v, %+v, %v", ids, paging, err)
			}
			if ids, paging, err := l.page(l.cursor(l.ids[n-1], true), 5); len(ids) != 0 || paging.HasOlder || err != nil {
				t.Errorf("older than the oldest: %v, %+v, %v", ids, paging, err)
			}

			// Rows come and go while one walks: after the first page one that was seen, after the second the very one
			// that the cursor names, after the third one that is still to come.
			gone := []storage.ID{l.ids[2], l.ids[9], l.ids[17]}
			pages := l.older(t, 5, func(page int) {
				l.add()
				if page <= len(gone) {
					l.remove(gone[page-1])
				}
			})
			want := slices.Delete(slices.Clone(l.ids), 17, 18)
			if got := slices.Concat(pages...); !slices.Equal(got, want) {
				t.Errorf("while rows come and go: %v, want %v", got, want)
			}
		})
	}
}

func TestScheduledMessagesByState(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	due, waiting := w.scheduled(3, -time.Hour), w.scheduled(4, time.Hour)
	must(w.DispatchScheduled(w.ctx, 0, 2, func(uint32) []uint32 { return nil }))
	waiting = append(due[2:], waiting...)
	slices.Reverse(due)
	slices.Reverse(waiting)
	yes, no := true, false
	for _, tt := range []struct {
		name       string
		dispatched *bool
		want       []storage.ID
	}{{"all", nil, slices.Concat(waiting[:4], due)}, {"dispatched", &yes, due[1:]}, {"waiting", &no, waiting}} {
		var got []storage.ID
		list, paging, err := w.ScheduledMessages(w.ctx, w.channel.Key, tt.dispatched, nil, 25)
		w.ok(err)
		for _, r := range list {
			if got = append(got, r.Key); r.MessageID != r.Key.String() {
				t.Errorf("%+v", r)
			}
		}
		if !slices.Equal(got, tt.want) || paging != (storage.Paging{}) {
			t.Errorf("%s: %v, %+v, want %v", tt.name, got, paging, tt.want)
		}
	}
	// A message that waits for its schedule is not among the messages yet.
	list, _, err := w.Messages(w.ctx, w.channel.Key, nil, 25)
	w.ok(err)
	if len(list) != 2 || list[0].Key != due[1] {
		t.Errorf("%+v", list)
	}
}
