package linstor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster/replica"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// look reads answers by path; one that is missing is an empty list.
func look(t *testing.T, pages map[string]string) (replica.System, error) {
	t.Helper()
	get := func(_ context.Context, path string, into any) error {
		body := pages[path]
		switch {
		case strings.HasPrefix(body, "!"):
			return errors.New(body[1:])
		case body == "" && path == "/v1/controller/properties":
			body = "{}"
		case body == "":
			body = "[]"
		}
		return json.Unmarshal([]byte(body), into)
	}
	return Controller{Get: get}.System(t.Context())
}

// system is a LINSTOR with what is the same of each.
func system(s replica.System) replica.System {
	s.Name, s.Waits, s.Holds, s.Evicts = Name, evictAfter, true, true
	s.Remedy = "Piraeus sets that of this node, so raise it in the LinstorSatelliteConfiguration"
	return s
}

const twoNodes = `[{"name":"wk1","type":"SATELLITE","connection_status":"ONLINE"},{"name":"wk2","type":"SATELLITE","connection_status":"ONLINE"}]`

// drbd is a resource of DRBD with one volume, connected to those peers.
func drbd(node, flags, disk, more string, peers ...string) string {
	var connections []string
	for _, p := range peers {
		connections = append(connections, fmt.Sprintf(`%q:{"connected":true,"message":"Connected"}`, p))
	}
	return fmt.Sprintf(`{"name":"pvc-1","node_name":%q,"flags":[%s],"state":{"in_use":false},"layer_object":{"type":"DRBD","drbd":{"connections":{%s}},"children":[{"type":"STORAGE"}]},`+
		`"volumes":[{"volume_number":0,"state":{"disk_state":%q%s}}]}`, node, flags, strings.Join(connections, ","), disk, more)
}

func list(items ...string) string { return "[" + strings.Join(items, ",") + "]" }

// TestRead reads answers as LINSTOR writes them.
func TestRead(t *testing.T) {
	t.Parallel()
	got, err := look(t, map[string]string{
		"/v1/nodes": `[{"name":"wk1","type":"SATELLITE","connection_status":"ONLINE"},{"name":"wk2","flags":["EVICTED"],"connection_status":"OFFLINE"},` +
			`{"name":"wk3","connection_status":"VERSION_MISMATCH"},{"name":"wk4","connection_status":"ONLINE","props":{"DrbdOptions/AutoEvictAfterTime":"30"}}]`,
		"/v1/view/resources": list(
			drbd("wk1", "", "UpToDate", "", "wk3", "wk4"), drbd("wk2", `"EVICTED","INACTIVE"`, "UpToDate", ""),
			`{"name":"pvc-1","node_name":"wk3","layer_object":{"type":"DRBD","drbd":{}},"volumes":[{"volume_number":0}]}`,
			drbd("wk4", `"DISKLESS","DRBD_DISKLESS","TIE_BREAKER"`, "Diskless", "", "wk1"),
			`{"name":"local","node_name":"wk1","layer_object":{"type":"LUKS","children":[{"type":"STORAGE"}]},"volumes":[{"state":{"disk_state":"Created"}}]}`,
			`{"name":"local","node_name":"wk3","layer_object":{"type":"STORAGE"},"volumes":[{"state":{"disk_state":"Created"}}]}`),
		"/v1/resource-definitions":  `[{"name":"pvc-1","resource_group_name":"fast","props":{"Aux/csi.storage.k8s.io/pvc/name":"db-0","Aux/csi.storage.k8s.io/pvc/namespace":"db","DrbdOptions/Resource/quorum":"majority"}}]`,
		"/v1/resource-groups":       `[{"name":"DfltRscGrp","select_filter":{"place_count":2}},{"name":"fast","select_filter":{"place_count":3}}]`,
		"/v1/controller/properties": `{"DrbdOptions/AutoEvictAllowEviction":"True","DrbdOptions/AutoEvictAfterTime":"60"}`,
	})
	want := system(replica.System{
		Patience: 30 * time.Minute,
		Nodes: []replica.Node{
			{Name: "wk1", Patience: time.Hour},
			{Name: "wk2", Down: "was evicted by LINSTOR", Patience: replica.Forever},
			{Name: "wk3", Down: "is VERSION_MISMATCH for LINSTOR", Patience: time.Hour},
			{Name: "wk4", Patience: 30 * time.Minute},
		},
		Volumes: []replica.Volume{
			{Name: "local", Wanted: 1, Alone: true, Robust: true, Replicas: []replica.Replica{{Node: "wk1", Healthy: true}}},
			{Name: "local", Wanted: 1, Alone: true, Replicas: []replica.Replica{{Node: "wk3"}}},
			{
				Name: "pvc-1", Claim: "db/db-0", Wanted: 3, Majority: true, Witnesses: []string{"wk4"},
				Replicas: []replica.Replica{{Node: "wk1", Healthy: true}, {Node: "wk2"}, {Node: "wk3"}},
			},
		},
	})
	must.Do(t, err)
	must.Equal(t, "got", want, got)
}

// TestCopies: only a copy is healthy that is UpToDate and connected to all others that run, or that is written to.
func TestCopies(t *testing.T) {
	t.Parallel()
	target := func(state string) string {
		return `,"replication_states":{"wk1":{"replication_state":"` + state + `","done_percentage":12.5}}`
	}
	inUse := strings.Replace(drbd("wk2", "", "UpToDate", ""), `"in_use":false`, `"in_use":true`, 1)
	type row struct {
		wk2    string
		nodes  string // "": both are online
		want   replica.Replica
		robust bool
	}
	cases := map[string]row{
		"current":                  {wk2: drbd("wk2", "", "UpToDate", "", "wk1"), want: replica.Replica{Healthy: true}, robust: true},
		"source of another":        {wk2: drbd("wk2", "", "UpToDate", target("SyncSource"), "wk1"), want: replica.Replica{Healthy: true}, robust: true},
		"not connected":            {wk2: drbd("wk2", "", "UpToDate", "")},
		"not connected, in use":    {wk2: inUse, want: replica.Replica{Healthy: true}, robust: true},
		"the other is away":        {wk2: drbd("wk2", "", "UpToDate", ""), nodes: strings.Replace(twoNodes, "ONLINE", "OFFLINE", 1), want: replica.Replica{Healthy: true}},
		"its satellite is away":    {wk2: drbd("wk2", "", "UpToDate", "", "wk1"), nodes: strings.Replace(twoNodes, `wk2","type":"SATELLITE","connection_status":"ONLINE`, `wk2","connection_status":"OFFLINE`, 1)},
		"inconsistent":             {wk2: drbd("wk2", "", "Inconsistent", "", "wk1")},
		"outdated":                 {wk2: drbd("wk2", "", "Outdated", "", "wk1")},
		"consistent":               {wk2: drbd("wk2", "", "Consistent", "", "wk1")},
		"unknown":                  {wk2: drbd("wk2", "", "DUnknown", "", "wk1")},
		"failed":                   {wk2: drbd("wk2", "", "Failed", "", "wk1")},
		"detached from its disk":   {wk2: drbd("wk2", "", "Diskless", "", "wk1")},
		"a resync":                 {wk2: drbd("wk2", "", "Inconsistent", target("SyncTarget"), "wk1"), want: replica.Replica{Rebuilt: true}},
		"a resync that is paused":  {wk2: drbd("wk2", "", "Inconsistent", target("PausedSyncT"), "wk1"), want: replica.Replica{Rebuilt: true}},
		"a resync in old versions": {wk2: drbd("wk2", "", "SyncTarget(12.50%)", "", "wk1"), want: replica.Replica{Rebuilt: true}},
		"being deleted":            {wk2: drbd("wk2", `"DELETE"`, "UpToDate", "", "wk1")},
		"inactive":                 {wk2: drbd("wk2", `"INACTIVE"`, "UpToDate", "", "wk1")},
		"without volumes":          {wk2: `{"name":"pvc-1","node_name":"wk2","layer_object":{"type":"DRBD","drbd":{"connections":{"wk1":{"connected":true}}}},"volumes":[]}`},
		"without a layer":          {wk2: `{"name":"pvc-1","node_name":"wk2","volumes":[{"state":{"disk_state":"UpToDate"}}]}`},
	}
	must.Each(t, cases, func(t *testing.T, tc row) {
		nodes := tc.nodes
		if nodes == "" {
			nodes = twoNodes
		}
		s := must.Get(look(t, map[string]string{"/v1/nodes": nodes, "/v1/view/resources": list(drbd("wk1", "", "UpToDate", "", "wk2"), tc.wk2)}))(t)
		tc.want.Node = "wk2"
		if v := s.Volumes[0]; v.Replicas[1] != tc.want || v.Robust != tc.robust {
			t.Errorf("robust %v, %+v, want %v, %+v", v.Robust, v.Replicas[1], tc.robust, tc.want)
		}
	})
}

// TestProperties: the nearest one counts.
func TestProperties(t *testing.T) {
	t.Parallel()
	const allows = `"DrbdOptions/AutoEvictAllowEviction":"true"`
	evictions := map[string]struct {
		controller, node string
		want             time.Duration
	}{
		"not allowed":             {want: 0},
		"not allowed, but a time": {controller: `"DrbdOptions/AutoEvictAfterTime":"5"`},
		"allowed":                 {controller: allows, want: 12 * time.Hour},
		"allowed, and a time":     {controller: allows + `,"DrbdOptions/AutoEvictAfterTime":"5"`, want: 5 * time.Minute},
		"not on this node":        {controller: allows, node: `"DrbdOptions/AutoEvictAllowEviction":"false"`},
	}
	for name, tc := range evictions {
		s, err := look(t, map[string]string{
			"/v1/nodes": `[{"name":"wk1","connection_status":"ONLINE","props":{` + tc.node + `}}]`, "/v1/controller/properties": "{" + tc.controller + "}",
		})
		must.Equal(t, name, []any{nil, tc.want}, []any{err, s.Patience})
	}
	const off, on = `{"DrbdOptions/Resource/quorum":"off"}`, `{"DrbdOptions/Resource/quorum":"majority"}`
	for _, tc := range []struct {
		definition, group, controller string
		want                          bool
	}{{"{}", "{}", "{}", false}, {"{}", "{}", on, true}, {"{}", off, on, false}, {on, off, off, true}, {off, on, on, false}} {
		s, err := look(t, map[string]string{
			"/v1/nodes": twoNodes, "/v1/view/resources": list(drbd("wk1", "", "UpToDate", "")),
			"/v1/resource-definitions": `[{"name":"pvc-1","resource_group_name":"g","props":` + tc.definition + `}]`,
			"/v1/resource-groups":      `[{"name":"g","props":` + tc.group + `}]`, "/v1/controller/properties": tc.controller,
		})
		must.Pass(t, err)
		must.Equal(t, fmt.Sprintf("majority, %+v", tc), tc.want, s.Volumes[0].Majority)
	}
}

// TestReadFails: one answer that is missing is an error.
func TestReadFails(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/v1/nodes", "/v1/view/resources", "/v1/resource-definitions", "/v1/resource-groups", "/v1/controller/properties"} {
		_, err := look(t, map[string]string{path: "!refused"})
		must.Not(t, err == nil || err.Error() != "refused", "%s: %v", path, err)
	}
}

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
	read := must.Get(c.Settings(t.Context()))(t)
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
	type row struct {
		props map[string]string
		do    func(context.Context, Controller) (string, error)
		wrote string // "": nothing
		said  string
	}
	must.Bubbles(t, map[string]row{
		"of the controller":        {nil, hold, `{"override_props":{"Aux/recast.dev/hold":"{\"was\":\"\",\"set\":\"60\",` + strings.TrimSuffix(memoOf, `},"delete_props":[]}`) + `,"DrbdOptions/AutoEvictAfterTime":"60"},"delete_props":[]}`, what + "is 60 instead of the controller's"},
		"of the node":              {map[string]string{evictAfter: "25"}, hold, `{"override_props":{"Aux/recast.dev/hold":"{\"was\":\"25\",\"set\":\"60\",` + strings.TrimSuffix(memoOf, `},"delete_props":[]}`) + `,"DrbdOptions/AutoEvictAfterTime":"60"},"delete_props":[]}`, what + "is 60 instead of 25"},
		"long enough":              {map[string]string{evictAfter: "60"}, hold, "", ""},
		"held already":             {map[string]string{evictAfter: "60", holdMemo: ours}, hold, "", ""},
		"not held":                 {map[string]string{evictAfter: "60"}, back, "", ""},
		"back to the controller's": {map[string]string{evictAfter: "60", holdMemo: ours}, back, `{"override_props":{},"delete_props":["DrbdOptions/AutoEvictAfterTime","Aux/recast.dev/hold"]}`, what + "is the controller's again"},
		"back to the node's":       {map[string]string{evictAfter: "60", holdMemo: oursOf25}, back, `{"override_props":{"DrbdOptions/AutoEvictAfterTime":"25"},"delete_props":["Aux/recast.dev/hold"]}`, what + "is 25 again"},
		"someone else has set it":  {map[string]string{evictAfter: "90", holdMemo: oursOf25}, back, `{"override_props":{},"delete_props":["Aux/recast.dev/hold"]}`, what + "stays 90: someone else has set that"},
		"someone else removed it":  {map[string]string{holdMemo: oursOf25}, back, `{"override_props":{},"delete_props":["Aux/recast.dev/hold"]}`, what + "stays the controller's: someone else has set that"},
	}, func(t *testing.T, tc row) {
		var wrote []string
		said, err := tc.do(t.Context(), nodeOf(tc.props, &wrote))
		must.Equal(t, "said", []any{nil, tc.said}, []any{err, said})
		var want []string
		if tc.wrote != "" {
			want = []string{"/v1/nodes/wk1 " + tc.wrote}
		}
		must.Equal(t, "-want +got", want, wrote)
	})
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
	must.Do(t, err)
	must.Equal(t, "got", want, got)
	s, err := look(t, map[string]string{
		"/v1/nodes":                 `[{"name":"wk1","connection_status":"ONLINE","props":{"DrbdOptions/AutoEvictAfterTime":"60","Aux/recast.dev/hold":"{\"was\":\"25\",\"set\":\"60\",\"nodes\":{\"wk1\":60}}"}}]`,
		"/v1/controller/properties": `{"DrbdOptions/AutoEvictAllowEviction":"true"}`,
	})
	must.Not(t, err != nil || s.PatienceFor("wk1") != 25*time.Minute || len(s.Held) != 1 || s.Holding("wk1", time.Minute) != time.Hour || s.Holding("wk9", time.Hour) != 0,
		"%+v, %v", s, err)
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
			must.Not(t, fault.KindOf(err) != fault.Refused || len(fault.Hints(err)) == 0 || len(wrote) > 0,
				"%q: %v, wrote %q", memo, err, wrote)
		}
	}
}
