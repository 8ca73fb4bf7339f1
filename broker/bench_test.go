package broker_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/storage"
)

// Accepts 1 KiB messages from 64 clients, without HTTP: what the coalescer and the database take.
//
//	go test ./broker -run xxx -bench Accept -benchtime 20000x
func BenchmarkAccept(b *testing.B) { benchmark(b, 0) }

// The same with one push consumer, until the last message is delivered.
func BenchmarkAcceptAndDeliver(b *testing.B) { benchmark(b, 1) }

func benchmark(b *testing.B, consumers int) {
	b.Helper()
	w := newWorld(b)
	var got atomic.Int64
	s := newSink(b, func(*http.Request) int { got.Add(1); return http.StatusOK })
	for range consumers {
		w.consumer("k", s.URL, storage.TypePush)
	}
	o := w.fast()
	o.PollInterval, o.Registerer = 0, prometheus.NewRegistry()
	broke := w.start(o)
	body := make([]byte, 1024)
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := broke.Accept(w.ctx, broker.Broadcast{Channel: w.channel, Producer: w.producer, ContentType: "text/plain", Body: body}); err != nil {
				b.Error(err)
			}
		}
	})
	eventually(b, func() bool { return got.Load() >= int64(b.N*consumers) })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
