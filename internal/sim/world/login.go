package world

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ticketLife is the lifetime of a ticket and its CSRF prevention token (AccessControl.pm).
const ticketLife = 2 * time.Hour

// Ticket is the result of a login.
type Ticket struct{ Ticket, CSRF string }

// SetPassword adds a user with a password; id is "name@realm".
func (w *World) SetPassword(id, password string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passwords[id] = password
}

// Login issues a ticket. The password may be a valid ticket.
func (w *World) Login(user, password string) (Ticket, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known, ok := w.passwords[user]
	right := ok && subtle.ConstantTimeCompare([]byte(known), []byte(password)) == 1
	if holder, err := w.verifyTicket(password); err == nil && holder == user {
		right = true
	}
	if !right {
		return Ticket{}, &Error{Status: 401, Message: "authentication failure"} // does not reveal which users exist
	}
	now := time.Now()
	return Ticket{Ticket: w.sign("PVE:"+user, now), CSRF: w.sign(user, now)}, nil
}

// VerifyTicket returns the user of a ticket.
func (w *World) VerifyTicket(ticket string) (user string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.verifyTicket(ticket)
}

func (w *World) verifyTicket(ticket string) (user string, err error) {
	content, ok := w.verify(ticket)
	user, isTicket := strings.CutPrefix(content, "PVE:")
	if !ok || !isTicket {
		return "", &Error{Status: 401, Message: "permission denied - invalid PVE ticket"}
	}
	return user, nil
}

// VerifyCSRF checks the header that every change with a ticket needs.
func (w *World) VerifyCSRF(user, token string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if content, ok := w.verify(token); !ok || content != user {
		return &Error{Status: 401, Message: "Permission denied - invalid csrf token"}
	}
	return nil
}

// VerifyToken says what is wrong with an API token, in the order of AccessControl.pm.
func (w *World) VerifyToken(id, secret string) error {
	w.mu.Look()
	defer w.mu.Unlock()
	user, name, _ := strings.Cut(id, "!")
	t, ok := w.tokens[id]
	switch {
	case !w.isUser(user):
		return &Error{Status: 401, Message: fmt.Sprintf("no such user ('%s')", user)}
	case !ok:
		return &Error{Status: 401, Message: fmt.Sprintf("no such token '%s' for user '%s'", name, user)}
	case t.Expired:
		return &Error{Status: 401, Message: "token expired"}
	case subtle.ConstantTimeCompare([]byte(t.Secret), []byte(secret)) != 1:
		return &Error{Status: 401, Message: "invalid token value!"}
	}
	return nil
}

func (w *World) isUser(user string) bool {
	if _, ok := w.passwords[user]; ok || user == "root@pam" {
		return true
	}
	for id := range w.tokens {
		if strings.HasPrefix(id, user+"!") {
			return true
		}
	}
	return false
}

// sign makes "content:HEXTIME::signature".
func (w *World) sign(content string, at time.Time) string {
	text := fmt.Sprintf("%s:%08X", content, at.Unix())
	return text + "::" + base64.StdEncoding.EncodeToString(w.signature(text))
}

func (w *World) signature(text string) []byte {
	if w.ticketKey == nil {
		w.ticketKey = []byte(rand.Text())
	}
	h := hmac.New(sha256.New, w.ticketKey)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// verify returns the signed content, unless it has expired.
func (w *World) verify(signed string) (content string, ok bool) {
	text, signature, _ := strings.Cut(signed, "::")
	got, err := base64.StdEncoding.DecodeString(signature)
	if err != nil || !hmac.Equal(got, w.signature(text)) {
		return "", false
	}
	i := strings.LastIndex(text, ":")
	seconds, err := strconv.ParseInt(text[i+1:], 16, 64)
	if err != nil || time.Since(time.Unix(seconds, 0)) > ticketLife {
		return "", false
	}
	return text[:i], true
}
