package notify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
)

// quotes are answers that quote the request, in every place where a server can.
var quotes = map[string]func(said string) string{
	"body": func(said string) string {
		return "HTTP/1.1 404 Not Found\r\nContent-Length: " + fmt.Sprint(len(said)) + "\r\n\r\n" + said
	},
	"status line": func(said string) string { return "HTTP/1.1 403 " + said + "\r\nContent-Length: 0\r\n\r\n" },
	"redirect": func(said string) string {
		return "HTTP/1.1 302 Found\r\nLocation: https://" + said + ".example/" + said + "?" + said + "\r\nContent-Length: 0\r\n\r\n"
	},
	"header": func(said string) string {
		return "HTTP/1.1 500 Oops\r\nServer: " + said + "\r\nContent-Length: 0\r\n\r\n"
	},
	"header that is none": func(said string) string { return "HTTP/1.1 500 Oops\r\n" + said + "\r\n\r\n" },
	"no HTTP at all":      func(said string) string { return said + "\r\n\r\n" },
	"no status":           func(said string) string { return "HTTP/1.1 " + said + "\r\n\r\n" },
	"no length":           func(said string) string { return "HTTP/1.1 400 Bad Request\r\nContent-Length: " + said + "\r\n\r\n" },
	"unknown encoding":    func(said string) string { return "HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: " + said + "\r\n\r\n" },
}

// TestSecrets: whatever a server answers, no message contains the path or query of the
// URL, wherever it is configured, or any part of a header.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const address, env = "https://hook.example/services/T0/PATHTOKEN", "https://hook.example/services/T0/PATHTOKEN?sig=QUERYTOKEN"
	for name, answer := range quotes {
		for _, said := range []string{env, "PATHTOKEN", "QUERYTOKEN", "sig=QUERYTOKEN", "/services/T0/PATHTOKEN", "Bearer HEADERTOKEN", "HEADERTOKEN"} {
			for _, w := range []Webhook{{URL: address}, {URLEnv: "URL"}} {
				w.Headers = map[string]string{"Authorization": "AUTH"}
				t.Run(name+" with "+said+" "+w.URLEnv, func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						_, warned, err := sends(t, echo(t, answer(said)), w, map[string]string{"AUTH": "Bearer HEADERTOKEN", "URL": env})
						text := message(err) + strings.Join(warned, "\n")
						if err == nil || len(warned) != 1 || regexp.MustCompile(`(?i)TOKEN|services|Bearer|sig=`).MatchString(text) {
							t.Errorf("it says %q", text)
						}
					})
				})
			}
		}
	}
}

// echo is a connection to a server that always sends the same answer.
func echo(t *testing.T, answer string) *http.Transport {
	t.Helper()
	dial := func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		go func() {
			_, _ = http.ReadRequest(bufio.NewReader(there))
			_, _ = io.WriteString(there, answer)
			_ = there.Close()
		}()
		return here, nil
	}
	transport := &http.Transport{DialContext: dial, DialTLSContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// A proxy's password must not reach the report.
func TestProxyIsNotQuoted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		transport := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) {
			return nil, errors.New(`invalid proxy address "http://u:s3cret@p"`)
		}}
		_, _, err := sends(t, transport, Webhook{}, nil)
		if want := "webhook hook.example: notice of failure: " + errNoAnswer.Error(); message(err) != want {
			t.Errorf("err = %v", err)
		}
	})
}
