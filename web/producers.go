package web

import (
	"net/http"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// stakeholderModel is what producers, channels and consumers have in common on the wire.
type stakeholderModel struct {
	ID, Name  string
	Token     string // only in the answer of the PUT that sets it
	ChangedAt time.Time
}

// listModel is a page of relative URLs.
type listModel struct {
	Result []string
	Pages  map[string]string
}

func (s *Server) listProducers(w http.ResponseWriter, r *http.Request) error {
	q, err := parsePage(r, placeKey)
	if err != nil {
		return err
	}
	cat, err := s.o.Store.Catalog(r.Context())
	if err != nil {
		return err
	}
	keyOf := func(p *storage.Producer) uint32 { return p.Key }
	page := pageOf(cat.Producers(), keyOf, q)
	return writeJSON(w, catalogPage(r, page, keyOf, func(p *storage.Producer) string { return producerURL(p.ID) }))
}

func catalogPage[T any](r *http.Request, page []T, keyOf func(T) uint32, urlOf func(T) string) listModel {
	list := listModel{
		Result: make([]string, len(page)),
		Pages:  pageLinks(r, page, func(v T) place { return place{kind: placeKey, key: keyOf(v)} }),
	}
	for i, v := range page {
		list.Result[i] = urlOf(v)
	}
	return list
}

func (s *Server) getProducer(w http.ResponseWriter, r *http.Request) error {
	p, err := s.producerOf(r)
	if err != nil {
		return err
	}
	return writeProducer(w, p, "")
}

func (s *Server) putProducer(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "producerId")
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
	p, err := s.o.Store.PutProducer(r.Context(), put)
	if err != nil {
		return err
	}
	return writeProducer(w, p, put.Token)
}

func writeProducer(w http.ResponseWriter, p *storage.Producer, token string) error {
	setLastModified(w, p.ChangedAt)
	return writeJSON(w, stakeholderModel{p.ID, p.Name, token, p.ChangedAt.UTC()})
}
