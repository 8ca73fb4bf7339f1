package web

import (
	"net/http"
	"strconv"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// destinationItem is what is known of a push consumer's destination. What no probe has told yet is null.
type destinationItem struct {
	ChannelID  string              `json:"channelId"`
	ConsumerID string              `json:"consumerId"`
	State      storage.HealthState `json:"state"`
	Since      *time.Time          `json:"sinceUtc"`
	CheckedAt  *time.Time          `json:"checkedAtUtc"`
	Failures   uint32              `json:"consecutiveFailures"`
	Class      *string             `json:"errorClass"` // of the last probe, as the next
	Error      *string             `json:"error"`
	LatencyMs  *int64              `json:"latencyMs"`
}

func newDestinationItem(d *storage.DestinationHealth) destinationItem {
	item := destinationItem{
		ChannelID: d.ChannelID, ConsumerID: d.ConsumerID, State: d.State, Failures: d.Failures, Class: orNull(d.Class), Error: orNull(d.Error),
	}
	if !d.CheckedAt.IsZero() {
		since, checkedAt, ms := d.Since.UTC(), d.CheckedAt.UTC(), d.Latency.Milliseconds()
		item.Since, item.CheckedAt, item.LatencyMs = &since, &checkedAt, &ms
	}
	return item
}

// listDestinations lists push consumers, the oldest first.
func (s *Server) listDestinations(w http.ResponseWriter, r *http.Request) error {
	q, err := s.parseListQuery(r, tokenDestinations, "state", "channelId")
	if err != nil {
		return err
	}
	f := storage.DestinationFilter{ChannelID: q.filter["channelId"]}
	if f.State, err = oneOf(q, "state", storage.HealthUnknown, storage.Healthy, storage.Unhealthy); err != nil {
		return err
	}
	if f.ChannelID != "" {
		if err := checkLine("channelId", f.ChannelID, maxQueueName); err != nil {
			return err
		}
	}
	var after uint32
	if q.after != nil {
		key, err := strconv.ParseUint(q.after.RowKey, 10, 32)
		if err != nil {
			return badRequest("continuationToken is none that this list gave out")
		}
		after = uint32(key)
	}
	rows, more, err := s.o.Store.ListDestinations(r.Context(), f, after, q.limit)
	if err != nil {
		return err
	}
	return succeedPage(s, w, r, q, rows, more, newDestinationItem, func(d *storage.DestinationHealth) storage.TableCursor {
		return storage.TableCursor{At: time.Unix(0, 0), RowKey: strconv.FormatUint(uint64(d.ConsumerKey), 10)}
	})
}
