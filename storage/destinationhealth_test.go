package storage_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func TestDestinationHealth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a, b, pull := w.consumer("a", storage.TypePush), w.consumer("b", storage.TypePush), w.consumer("pull", storage.TypePull)
	at := must(w.Now(w.ctx)).UTC()
	states := func(want ...storage.HealthState) []storage.DestinationHealth {
		t.Helper()
		all := must(w.DestinationHealth(w.ctx))
		if len(all) != len(want) {
			t.Fatalf("%d destinations, want %d", len(all), len(want))
		}
		for i, d := range all {
			if d.State != want[i] {
				t.Errorf("%s is %s, want %s", d.ConsumerID, d.State, want[i])
			}
		}
		return all
	}
	if all := states(storage.HealthUnknown, storage.HealthUnknown); !all[0].CheckedAt.IsZero() || all[0].ChannelID != "orders" || all[0].ConsumerID != "a" {
		t.Errorf("%+v", all[0])
	}
	w.ok(w.PutDestinationHealth(w.ctx, nil))
	down := storage.DestinationHealth{
		ConsumerKey: a.Key, State: storage.Unhealthy, Since: at.Add(-time.Minute), CheckedAt: at, Failures: 3,
		Class: "http_5xx", Error: strings.Repeat("ü", 600), Latency: 12 * time.Millisecond,
	}
	up := storage.DestinationHealth{ConsumerKey: b.Key, State: storage.Healthy, Since: at, CheckedAt: at, Successes: 1}
	gone := up
	gone.ConsumerKey = 4711
	for range 2 { // again is as once
		w.ok(w.PutDestinationHealth(w.ctx, []storage.DestinationHealth{down, up, gone}))
		all := states(storage.Unhealthy, storage.Healthy)
		want := down
		want.ChannelID, want.ConsumerID, want.Error = "orders", "a", strings.Repeat("ü", 512)
		if all[0] != want {
			t.Errorf("read %+v, want %+v", all[0], want)
		}
	}
	// A process that was slow does not undo what is known since.
	late := up
	late.ConsumerKey, late.CheckedAt = a.Key, at.Add(-time.Microsecond)
	w.ok(w.PutDestinationHealth(w.ctx, []storage.DestinationHealth{late}))
	if all := states(storage.Unhealthy, storage.Healthy); all[0].Failures != 3 || !all[0].CheckedAt.Equal(at) {
		t.Errorf("%+v", all[0])
	}
	late.CheckedAt = at.Add(time.Microsecond)
	w.ok(w.PutDestinationHealth(w.ctx, []storage.DestinationHealth{late}))
	if all := states(storage.Healthy, storage.Healthy); all[0].Failures != 0 || all[0].Class != "" || all[0].Error != "" || !all[0].CheckedAt.Equal(late.CheckedAt) {
		t.Errorf("%+v", all[0])
	}
	if of := must(w.DestinationHealthOf(w.ctx, []uint32{b.Key, pull.Key, 4711})); len(of) != 1 || of[0].ConsumerKey != b.Key {
		t.Errorf("%+v", of)
	}
	if of := must(w.DestinationHealthOf(w.ctx, nil)); len(of) != 0 {
		t.Errorf("%+v", of)
	}
	w.ok(w.DeleteConsumer(w.ctx, b.Key, b.ChangedAt))
	states(storage.Healthy)
	if n := w.number(`SELECT COUNT(*) FROM destination_health`); n != 1 {
		t.Errorf("%d rows are left", n)
	}
}

func TestListDestinations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	other := must(w.PutChannel(w.ctx, storage.PutStakeholder{ID: "other", Name: "Other", Token: "t"}))
	at := must(w.Now(w.ctx))
	for i, id := range []string{"a", "b", "c", "d"} {
		k := w.consumer(id, storage.TypePush)
		state := []storage.HealthState{storage.Healthy, storage.Unhealthy, storage.HealthUnknown}[i%3]
		if id != "c" {
			w.ok(w.PutDestinationHealth(w.ctx, []storage.DestinationHealth{{ConsumerKey: k.Key, State: state, Since: at, CheckedAt: at}}))
		}
	}
	must(w.PutConsumer(w.ctx, storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: "e", Name: "e", Token: "t"}, ChannelKey: other.Key, Type: storage.TypePush, CallbackURL: "http://e.example",
	}))
	for _, tc := range []struct {
		filter storage.DestinationFilter
		want   string
	}{
		{storage.DestinationFilter{}, "abcde"},
		{storage.DestinationFilter{ChannelID: "other"}, "e"},
		{storage.DestinationFilter{ChannelID: "orders"}, "abcd"},
		{storage.DestinationFilter{State: storage.Healthy}, "ad"},
		{storage.DestinationFilter{State: storage.Unhealthy, ChannelID: "orders"}, "b"},
		{storage.DestinationFilter{State: storage.Unhealthy, ChannelID: "other"}, ""},
		{storage.DestinationFilter{State: storage.HealthUnknown}, "ce"},
	} {
		var got string
		var after uint32
		for more := true; more; {
			var page []storage.DestinationHealth
			var err error
			page, more, err = w.ListDestinations(w.ctx, tc.filter, after, 2)
			w.ok(err)
			if len(page) > 2 || more && len(page) != 2 {
				t.Fatalf("%+v: a page of %d", tc.filter, len(page))
			}
			for _, d := range page {
				got, after = got+d.ConsumerID, d.ConsumerKey
			}
		}
		if got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.filter, got, tc.want)
		}
	}
}
