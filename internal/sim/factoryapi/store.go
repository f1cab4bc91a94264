package factoryapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"
)

// signature stands for what makes a URL of the store good for a download.
const signature = "X-Amz-Signature"

// Store is the factory's store of built images, which serves them itself where
// the factory has Options.Store: to whoever has a signed URL, and without other credentials.
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
		content := f.shelf[name] // what was signed is there
		f.mu.Unlock()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("ETag", `"`+name+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}

// storeURL is where the store has an asset.
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

// storeError answers as S3 does.
func storeError(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`<?xml version="1.0" encoding="UTF-8"?>` + "\n" +
		"<Error><Code>" + code + "</Code><Message>" + message + "</Message></Error>")) // the client may be gone
}
