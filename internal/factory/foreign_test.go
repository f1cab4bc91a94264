package factory

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

// Everything that a factory, or a proxy before it, says becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	const evil = "bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f"
	for name, body := range map[string]string{"text": evil, "page": "<html><title>" + evil + "</title></html>"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, err := serve(t, answer(http.StatusBadRequest, body)).Versions(t.Context())
				if err == nil {
					t.Fatal("no error")
				}
				if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
					t.Errorf("%q", text)
				}
			})
		})
	}
}
