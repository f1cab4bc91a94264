package pve

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/recast-sh/recast/internal/pve/api/apitest"
)

const (
	// stallingHost stops reading an upload after stallAfter bytes.
	stallingHost = "pve2"
	stallAfter   = 64 << 20
)

// serveUploads is a Proxmox node that receives uploads of ISOs and keeps only their
// checksums. It prints its address, and ends with its input.
func serveUploads(t *testing.T) {
	cert := apitest.NewCertificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	fmt.Printf("https://%s %s\n", l.Addr(), apitest.Fingerprint(cert.Leaf))
	srv := &http.Server{Handler: &uploadTaker{}, ErrorLog: log.New(io.Discard, "", 0)}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}})) })
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = srv.Close()
	wg.Wait()
}

type uploadTaker struct {
	mu   sync.Mutex
	exit string // of the last task
}

func (s *uploadTaker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/nodes/"+stallingHost+"/"):
		_, _ = io.CopyN(io.Discard, r.Body, stallAfter)
		<-r.Context().Done()
	case r.Method == http.MethodPost:
		var got received
		exit := "OK"
		if err := got.read(r); err != nil || len(got.parts) != 4 || got.parts[3].Value != got.parts[2].Value || got.length <= 0 {
			exit = fmt.Sprintf("received %+v, %v", got, err)
		}
		s.mu.Lock()
		s.exit = exit
		s.mu.Unlock()
		data(`"`+testUPID+`"`)(w, r)
	case strings.HasSuffix(r.URL.Path, "/status"):
		s.mu.Lock()
		defer s.mu.Unlock()
		stopped(s.exit)(w, r)
	case strings.HasSuffix(r.URL.Path, "/access/permissions"):
		data(fmt.Sprintf(`{%q:{"Datastore.AllocateTemplate":1}}`, r.URL.Query().Get("path")))(w, r)
	default:
		data(`[]`)(w, r)
	}
}
