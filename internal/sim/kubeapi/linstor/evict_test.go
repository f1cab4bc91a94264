package linstor

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestModifyNode: properties of a node are changed together or not at all, as LINSTOR does.
func TestModifyNode(t *testing.T) {
	t.Parallel()
	c := New(func() {})
	c.AddNode("wk1")
	for _, tc := range []struct {
		node, body string
		code       int
		said       string
	}{
		{"wk1", `{"override_props":{"DrbdOptions/AutoEvictAfterTime":"60","Aux/a":"1"},"delete_props":[]}`, http.StatusOK, "modified"},
		{"wk1", `{"override_props":{"DrbdOptions/AutoEvictAfterTime":"an hour","Aux/a":"2"}}`, http.StatusInternalServerError, "Invalid property"},
		{"wk1", `{"override_props":{"Other":"x","Aux/a":"2"}}`, http.StatusInternalServerError, "Invalid property key: Other"},
		{"wk1", `{"override_props":`, http.StatusBadRequest, "parse"},
		{"wk9", `{"delete_props":["Aux/a"]}`, http.StatusNotFound, "not found"},
	} {
		w := httptest.NewRecorder()
		c.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/v1/nodes/"+tc.node, strings.NewReader(tc.body)))
		must.Hold(t, w.Code == tc.code && strings.Contains(w.Body.String(), tc.said), "%s: %d %s", tc.body, w.Code, w.Body)
		must.Equal(t, "after", []any{"1", "60"}, []any{c.NodeProperty("wk1", "Aux/a"), c.NodeProperty("wk1", evictAfter)})
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/v1/nodes/wk1", strings.NewReader(`{"delete_props":["Aux/a","DrbdOptions/AutoEvictAfterTime","Aux/none"]}`)))
	must.Hold(t, w.Code == http.StatusOK && c.NodeProperty("wk1", "Aux/a")+c.NodeProperty("wk1", evictAfter) == "",
		"%d %s", w.Code, w.Body)
}
