package linstor

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
)

// nodeOf is a controller with one node, wk1, and what was written to it.
func nodeOf(props map[string]string, wrote *[]string) Controller {
	return Controller{
		Place: "/proxy",
		Get: func(_ context.Context, path string, into any) error {
			var answer any = map[string]string{evictAllowed: "True", evictAfter: "20"}
			if path == "/v1/nodes" {
				answer = []node{{Name: "wk1", Props: props, Status: "ONLINE"}}
			}
			b, err := json.Marshal(answer)
			return errors.Join(err, json.Unmarshal(b, into))
		},
		Put: func(_ context.Context, path string, body any) error {
			b, err := json.Marshal(body)
			*wrote = append(*wrote, path+" "+string(b))
			return err
		},
	}
}

func settings(t *testing.T, c Controller) []replica.Setting {
	t.Helper()
	read, err := c.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// TestHold: what was there is written with the change, and given back exactly; what someone else has set stays.
func TestHold(t *testing.T) {
	t.Parallel()
	const ours = `{"was":"","set":"60","nodes":{"wk1":60},"run":"r1","since":"2000-01-01T00:00:00Z"}`
	const oursOf25 = `{"was":"25","set":"60","nodes":{"wk1":60}}`
	const memoOf = `\"nodes\":{\"wk1\":60},\"run\":\"r1\",\"since\":\"2000-01-01T00:00:00Z\"}"},"delete_props":[]}`
	const what = "DrbdOptions/AutoEvictAfterTime of wk1 in LINSTOR "
	hold := func(ctx context.Context, c Controller) (string, error) {
		return replica.HoldRebuild(ctx, settings(t, c), "wk1", "r1", 59*time.Minute+time.Second)
	}
	back := func(ctx context.Context, c Controller) (string, error) {
		return replica.GiveBack(ctx, settings(t, c), "wk2", "wk1")
	}
	for name, tc := range map[string]struct {
		props map[string]string
		do    func(context.Context, Controller) (string, error)
		wrote string // "": nothing
		said  string
	}{
		"of the controller":        {nil, hold, `{"override_props":{"Aux/recast.dev/hold":"{\"was\":\"\",\"set\":\"60\",` + strings.TrimSuffix(memoOf, `},"delete_props":[]}`) + `,"DrbdOptions/AutoEvictAfterTime":"60"},"delete_props":[]}`, what + "is 60 instead of the controller's"},
		"of the node":              {map[string]string{evictAfter: "25"}, hold, `{"override_props":{"Aux/recast.dev/hold":"{\"was\":\"25\",\"set\":\"60\",` + strings.TrimSuffix(memoOf, `},"delete_props":[]}`) + `,"DrbdOptions/AutoEvictAfterTime":"60"},"delete_props":[]}`, what + "is 60 instead of 25"},
		"long enough":              {map[string]string{evictAfter: "60"}, hold, "", ""},
		"held already":             {map[string]string{evictAfter: "60", holdMemo: ours}, hold, "", ""},
		"not held":                 {map[string]string{evictAfter: "60"}, back, "", ""},
		"back to the controller's": {map[string]string{evictAfter: "60", holdMemo: ours}, back, `{"override_props":{},"delete_props":["DrbdOptions/AutoEvictAfterTime","Aux/recast.dev/hold"]}`, what + "is the controller's again"},
		"back to the node's":       {map[string]string{evictAfter: "60", holdMemo: oursOf25}, back, `{"override_props":{"DrbdOptions/AutoEvictAfterTime":"25"},"delete_props":["Aux/recast.dev/hold"]}`, what + "is 25 again"},
		"someone else has set it":  {map[string]string{evictAfter: "90", holdMemo: oursOf25}, back, `{"override_props":{},"delete_props":["Aux/recast.dev/hold"]}`, what + "stays 90: someone else has set that"},
		"someone else removed it":  {map[string]string{holdMemo: oursOf25}, back, `{"override_props":{},"delete_props":["Aux/recast.dev/hold"]}`, what + "stays the controller's: someone else has set that"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var wrote []string
				said, err := tc.do(t.Context(), nodeOf(tc.props, &wrote))
				if err != nil || said != tc.said {
					t.Errorf("said %q, %v", said, err)
				}
				var want []string
				if tc.wrote != "" {
					want = []string{"/v1/nodes/wk1 " + tc.wrote}
				}
				if diff := cmp.Diff(want, wrote); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}

// TestHolds: what is held is listed with what gives it back, and LINSTOR's own patience is what it would be without.
func TestHolds(t *testing.T) {
	t.Parallel()
	memo := replica.Memo{Was: "25", Set: "60", Nodes: map[string]int{"wk1": 60}}
	want := []replica.Hold{{
		System: "LINSTOR", Setting: "DrbdOptions/AutoEvictAfterTime of wk1", Now: "60", Memo: memo,
		Undo: `echo '{"override_props":{"DrbdOptions/AutoEvictAfterTime":"25"},"delete_props":["Aux/recast.dev/hold"]}' | kubectl replace --raw /proxy/v1/nodes/wk1 -f -`,
	}}
	got, err := replica.Held(settings(t, nodeOf(map[string]string{evictAfter: "60", holdMemo: `{"was":"25","set":"60","nodes":{"wk1":60}}`}, nil)))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	s, err := look(t, map[string]string{
		"/v1/nodes":                 `[{"name":"wk1","connection_status":"ONLINE","props":{"DrbdOptions/AutoEvictAfterTime":"60","Aux/recast.dev/hold":"{\"was\":\"25\",\"set\":\"60\",\"nodes\":{\"wk1\":60}}"}}]`,
		"/v1/controller/properties": `{"DrbdOptions/AutoEvictAllowEviction":"true"}`,
	})
	if err != nil || s.PatienceFor("wk1") != 25*time.Minute || len(s.Held) != 1 || s.Holding("wk1", time.Minute) != time.Hour || s.Holding("wk9", time.Hour) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestHoldRefuses: nothing is written over what can't be understood.
func TestHoldRefuses(t *testing.T) {
	t.Parallel()
	for _, memo := range []string{"", "{}", `{"was":"x","set":"60","nodes":{"wk1":60}}`, `{"was":"","set":"","nodes":{"wk1":60}}`, `{"was":"20","set":"60"}`} {
		var wrote []string
		read := settings(t, nodeOf(map[string]string{evictAfter: "60", holdMemo: memo}, &wrote))
		_, errHold := replica.HoldRebuild(t.Context(), read, "wk1", "r1", time.Hour)
		_, errBack := replica.GiveBack(t.Context(), read, "wk1")
		_, errHolds := replica.Held(read)
		for _, err := range []error{errHold, errBack, errHolds} {
			if fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) == 0 || len(wrote) > 0 {
				t.Errorf("%q: %v, wrote %q", memo, err, wrote)
			}
		}
	}
}
