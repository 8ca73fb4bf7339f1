package web

import (
	"net/http"

	"github.com/redrive-mq/redrive/storage"
)

type channelModel struct {
	stakeholderModel
	ConsumersURL, MessagesURL, BroadcastURL, MessagesStatusURL, ScheduledMessagesURL string
	History                                                                          string `json:",omitempty"` // left out: all
}

func (s *Server) listChannels(w http.ResponseWriter, r *http.Request) error {
	q, err := parsePage(r, placeKey)
	if err != nil {
		return err
	}
	cat, err := s.o.Store.Catalog(r.Context())
	if err != nil {
		return err
	}
	keyOf := func(ch *storage.Channel) uint32 { return ch.Key }
	page := pageOf(cat.Channels(), keyOf, q)
	return writeJSON(w, catalogPage(r, page, keyOf, func(ch *storage.Channel) string { return channelURL(ch.ID) }))
}

func (s *Server) getChannel(w http.ResponseWriter, r *http.Request) error {
	_, ch, err := s.channelOf(r)
	if err != nil {
		return err
	}
	return writeChannel(w, ch, "")
}

func (s *Server) putChannel(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "channelId")
	if err != nil {
		return err
	}
	form, err := s.readForm(w, r)
	if err != nil {
		return err
	}
	put, err := stakeholderForm(r, id, form)
	if err != nil {
		return err
	}
	if name := form.Get("history"); name != "" {
		policy, ok := storage.ParseHistoryPolicy(name)
		if !ok {
			return badRequest("history must be all, failures or off")
		}
		put.History = &policy
	}
	ch, err := s.o.Store.PutChannel(r.Context(), put)
	if err != nil {
		return err
	}
	return writeChannel(w, ch, put.Token)
}

func writeChannel(w http.ResponseWriter, ch *storage.Channel, token string) error {
	setLastModified(w, ch.ChangedAt)
	at := channelURL(ch.ID)
	history := ch.History.String()
	if ch.History == storage.HistoryAll {
		history = "" // a client that never heard of it need not see it
	}
	return writeJSON(w, channelModel{
		stakeholderModel{ch.ID, ch.Name, token, ch.ChangedAt.UTC()},
		at + "/consumers", at + "/messages", at + "/broadcast", at + "/messages-status", at + "/scheduled-messages", history,
	})
}
