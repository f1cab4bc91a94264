package pveapi

import (
	"encoding/json"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
)

// TestEncode compares with encoding/json.
func TestEncode(t *testing.T) {
	t.Parallel()
	for _, data := range []any{
		nil, "", "plain", "a \"quoted\" <b> & \\ \u2028 \n ü \x7f", 0, -7, int64(1) << 60, true, 0.05,
		[]string{"a", "b"},
		[]object(nil),
		[]object{},
		object(nil),
		object{},
		object{"b": 1, "a": "x", "c": object{"<": nil}, "d": []object{{"z": false}, {}}, "e": []any{1, "two"}, "f": map[string]string{"k": "v"}, "g": 1e21},
		map[string]int{"x": 1},
		json.RawMessage(`{"raw":1}`),
		[]any{object{"a": 1}},
	} {
		for _, total := range []int{0, 3} {
			a := answer{Data: data, Total: total}
			want, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			got, err := a.encode()
			must.Equal(t, "got", []any{nil, string(want)}, []any{err, string(got)})
		}
	}
	if _, err := (answer{Data: object{"f": func() {}}}).encode(); err == nil {
		t.Error("a function can be written")
	}
}
