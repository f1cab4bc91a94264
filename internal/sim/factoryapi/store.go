package factoryapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// signature is the query parameter that authorizes a download from the store.
const signature = "X-Amz-Signature"

// Store serves the factory's built images if Options.Store is set: to clients with a signed
// URL, without other credentials.
func (f *Factory) Store() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		switch {
		case r.Header.Get("Authorization") != "":
			storeError(w, http.StatusBadRequest, "InvalidArgument", "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified")
			return
		case r.URL.Query().Get(signature) != sign(name):
			storeError(w, http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method.")
			return
		}
		f.mu.Lock()
		content := f.shelf[name] // a signed image exists
		f.mu.Unlock()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("ETag", `"`+name+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}

// storeURL is an asset's signed URL in the store.
func (f *Factory) storeURL(content []byte) string {
	sum := sha256.Sum256(content)
	name := hex.EncodeToString(sum[:])
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shelf[name] = content
	return f.opts.Store + "/" + name + "?" + signature + "=" + sign(name)
}

func sign(name string) string {
	sum := sha256.Sum256([]byte("signed " + name))
	return hex.EncodeToString(sum[:])
}

// storeError is an error as S3 sends it.
func storeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`<?xml version="1.0" encoding="UTF-8"?>` + "\n" +
		"<Error><Code>" + code + "</Code><Message>" + message + "</Message></Error>")) // the client may be gone
}
