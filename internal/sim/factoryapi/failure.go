package factoryapi

import (
	"errors"
	"fmt"
	"net/http"
)

// failure is an error whose text the factory shows, with its status.
type failure struct {
	status int
	error
}

func failf(status int, format string, args ...any) error {
	return &failure{status: status, error: fmt.Errorf(format, args...)}
}

func invalidf(format string, args ...any) error {
	return failf(http.StatusBadRequest, format, args...)
}

func missingf(format string, args ...any) error {
	return failf(http.StatusNotFound, format, args...)
}

// handler is an endpoint; fail answers its errors.
type handler func(w http.ResponseWriter, r *http.Request) error

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		fail(w, err)
	}
}

// fail answers like the real factory: the whole error chain for user errors, and "internal
// server error" for all others.
func fail(w http.ResponseWriter, err error) {
	if f, ok := errors.AsType[*failure](err); ok {
		http.Error(w, err.Error(), f.status)
		return
	}
	http.Error(w, "internal server error", http.StatusInternalServerError)
}
