package registry

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// Everything that a registry says becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"its words": `{"errors":[{"code":"DENIED","message":"bad\u001b[31m\u001b]0;title\u0007\r\nfake line: \u202e\u2028\u007f"}]}`,
		"no JSON":   "bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f",
	} {
		for _, status := range []int{http.StatusForbidden, http.StatusBadRequest} {
			refuses := direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/v2/" {
					w.WriteHeader(status)
					_, _ = io.WriteString(w, body)
				}
			})}
			_, _, err := client(t, refuses).Digest(t.Context(), host+"/a/b:v1")
			if err == nil {
				t.Fatal("no error")
			}
			if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
				t.Errorf("%s, %d: %q", name, status, text)
			}
		}
	}
}
