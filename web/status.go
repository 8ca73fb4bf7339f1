package web

import (
	"net/http"
	"time"
)

type dlqConsumerModel struct {
	ChannelID     string     `json:"channelId"`
	ChannelName   string     `json:"channelName"`
	ConsumerID    string     `json:"consumerId"`
	ConsumerName  string     `json:"consumerName"`
	DeadCount     int64      `json:"deadCount"`
	LastCheckedAt *time.Time `json:"lastCheckedAt"`
}

type dlqStatusModel struct {
	Consumers     []dlqConsumerModel `json:"consumers"`
	Exact         bool               `json:"exact"`
	AsOf          time.Time          `json:"asOf"`
	LastCheckedAt *time.Time         `json:"lastCheckedAt"`
}

func (s *Server) dlqStatus(w http.ResponseWriter, r *http.Request) error {
	counts, exact, err := s.o.DeadCounter.Counts(r.Context())
	if err != nil {
		return err
	}
	out := dlqStatusModel{
		Consumers: make([]dlqConsumerModel, len(counts.Consumers)),
		Exact:     exact, AsOf: counts.AsOf.UTC(), LastCheckedAt: counts.LastCheckedAt,
	}
	for i, c := range counts.Consumers {
		out.Consumers[i] = dlqConsumerModel{c.ChannelID, c.ChannelName, c.ConsumerID, c.ConsumerName, c.Dead, c.LastCheckedAt}
	}
	return writeJSON(w, out)
}

type jobStatusModel struct {
	Status string     `json:"status"`
	Count  int64      `json:"count"`
	Oldest *time.Time `json:"oldestItemTimestamp"`
	Newest *time.Time `json:"newestItemTimestamp"`
}

func (s *Server) jobStatus(w http.ResponseWriter, r *http.Request) error {
	counts, err := s.o.Store.JobStatus(r.Context())
	if err != nil {
		return err
	}
	out := map[string]map[string][]jobStatusModel{}
	for _, c := range counts {
		consumers := out[c.ChannelID]
		if consumers == nil {
			consumers = map[string][]jobStatusModel{}
			out[c.ChannelID] = consumers
		}
		consumers[c.ConsumerID] = append(consumers[c.ConsumerID], jobStatusModel{c.Status.String(), c.Count, c.Oldest, c.Newest})
	}
	return writeJSON(w, out)
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) error {
	out := AppStatus{AppStatus: AppStarted}
	if s.o.Status != nil {
		var err error
		if out, err = s.o.Status(r.Context()); err != nil {
			return err
		}
	}
	return writeJSON(w, out)
}

type probeModel struct {
	Status string `json:"status"`
}

func (s *Server) live(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, probeModel{"ok"})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) error {
	if s.o.Ready != nil {
		if err := s.o.Ready(r.Context()); err != nil {
			return fail(http.StatusServiceUnavailable, err.Error())
		}
	}
	return writeJSON(w, probeModel{"ok"})
}
