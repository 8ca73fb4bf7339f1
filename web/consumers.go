package web

import (
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"code.dny.dev/ssrf"

	"github.com/redrive-mq/redrive/storage"
)

const maxCallbackURL = 2048 // bytes

type consumerModel struct {
	stakeholderModel
	CallbackURL, DeadLetterQueueURL, Type string
}

func (s *Server) listConsumers(w http.ResponseWriter, r *http.Request) error {
	q, err := parsePage(r, placeKey)
	if err != nil {
		return err
	}
	cat, ch, err := s.channelOf(r)
	if err != nil {
		return err
	}
	keyOf := func(k *storage.Consumer) uint32 { return k.Key }
	page := pageOf(cat.ConsumersOf(ch), keyOf, q)
	return writeJSON(w, catalogPage(r, page, keyOf, func(k *storage.Consumer) string { return consumerURL(ch.ID, k.ID) }))
}

func (s *Server) getConsumer(w http.ResponseWriter, r *http.Request) error {
	ref, err := s.consumerOf(r)
	if err != nil {
		return err
	}
	return writeConsumer(w, ref.channel, ref.consumer, "")
}

func (s *Server) putConsumer(w http.ResponseWriter, r *http.Request) error {
	id, err := pathID(r, "consumerId")
	if err != nil {
		return err
	}
	_, ch, err := s.channelOf(r)
	if err != nil {
		return err
	}
	form, err := s.readForm(w, r)
	if err != nil {
		return err
	}
	put := storage.PutConsumer{ChannelKey: ch.Key, CallbackURL: form.Get("callbackUrl")}
	switch kind := storage.ConsumerType(form.Get("type")); kind {
	case "":
		put.Type = storage.TypePush
	case storage.TypePush, storage.TypePull:
		put.Type = kind
	case storage.TypeEngine:
		return badRequest("consumers of type engine are made by the broker, of the engines that it has")
	default:
		return badRequest("type is neither push nor pull")
	}
	// Nobody ever connects to a pull consumer's URL, so it may name any address.
	if err := CheckCallbackURL(put.CallbackURL, s.o.AllowPrivateDestinations || put.Type == storage.TypePull); err != nil {
		return err
	}
	if put.PutStakeholder, err = stakeholderForm(r, id, form); err != nil {
		return err
	}
	k, err := s.o.Store.PutConsumer(r.Context(), put)
	if err != nil {
		return err
	}
	return writeConsumer(w, ch, k, put.Token)
}

func (s *Server) deleteConsumer(w http.ResponseWriter, r *http.Request) error {
	ref, err := s.consumerOf(r)
	if err != nil {
		return err
	}
	since := unmodifiedSince(r)
	if since == nil {
		return storage.ErrPreconditionMissing
	}
	if err := s.o.Store.DeleteConsumer(r.Context(), ref.consumer.Key, *since); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func writeConsumer(w http.ResponseWriter, ch *storage.Channel, k *storage.Consumer, token string) error {
	setLastModified(w, k.ChangedAt)
	return writeJSON(w, consumerModel{
		stakeholderModel{k.ID, k.Name, token, k.ChangedAt.UTC()},
		k.CallbackURL, consumerURL(ch.ID, k.ID) + "/dlq", string(k.Type),
	})
}

// CheckCallbackURL says what is wrong with a callback URL (absolute, http or https, at most 2048 bytes), or nothing.
// Addresses that must not be pushed to, unless private allows them, are refused here only where the URL spells them out;
// what a name resolves to is checked when the push dials it.
func CheckCallbackURL(raw string, private bool) error {
	if raw == "" {
		return badRequest("callbackUrl is missing")
	}
	if len(raw) > maxCallbackURL {
		return badRequest("callbackUrl is longer than 2048 bytes")
	}
	u, err := url.Parse(raw)
	if err != nil || !utf8.ValidString(raw) || strings.ContainsFunc(raw, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return badRequest("callbackUrl is not a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Opaque != "" {
		return badRequest("callbackUrl is not an absolute http or https URL")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return badRequest("callbackUrl has a port that is none")
		}
	}
	if isNumericHost(u.Hostname()) {
		return badRequest("callbackUrl names its host by a number that is no IP address")
	}
	if !private && isPrivateHost(u.Hostname()) {
		return badRequest("callbackUrl names a loopback, private or link-local address; this broker does not push to those")
	}
	return nil
}

// isNumericHost tells hosts like 127.1 and 0x7f000001, which some resolvers take for addresses and others for names.
func isNumericHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	last := strings.TrimSuffix(host, ".")
	last = strings.ToLower(last[strings.LastIndexByte(last, '.')+1:])
	digits := strings.TrimPrefix(last, "0x")
	if digits == last {
		return strings.Trim(last, "0123456789") == ""
	}
	return strings.Trim(digits, "0123456789abcdef") == ""
}

func isPrivateHost(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	// What the guard of the dialler refuses, and IPv6 zones, which name an interface of this machine.
	ip = ip.Unmap()
	return ip.Zone() != "" || ssrf.New(ssrf.WithAnyPort()).SafeAddr(ip) != nil
}
