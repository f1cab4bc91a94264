package rolling_test

import (
	"context"
	"testing"

	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/rolling/rollingtest"
)

type scene = rollingtest.Scene

type kv = rollingtest.KV

type row = rollingtest.Row

// The changes that rows are made of.
var (
	all   = rollingtest.All
	begun = rollingtest.Begun
)

var calls = map[string]rollingtest.Call{
	"parking": {Do: func(s *scene, ctx context.Context) error { _, err := s.Parking(ctx); return err }, Ready: begun},
}

// TestGateOfParking: only the VM that has the node's record is accepted as its parking VM.
func TestGateOfParking(t *testing.T) {
	t.Parallel()
	record := func(change func(*parking.Record)) func(*scene) { return func(s *scene) { change(s.Rec) } }
	text := func(text string) func(*scene) {
		return func(s *scene) {
			s.Ready()
			s.PX.Set(9900, kv{"description": text})
		}
	}
	rollingtest.CheckCalls(t, calls)
	rollingtest.CheckRows(t, calls, []row{
		{Do: "parking", Change: text("recast-record: {"), Err: "can't be read"},
		{Do: "parking", Change: func(s *scene) { s.Rec = nil }, Err: "parking VM of wk1: not found"},
		{Do: "parking", Change: text("mine"), Err: "no longer says so"},
		{Do: "parking", Change: record(func(rec *parking.Record) { rec.Node = "wk2" }), Err: "no longer says so"},
		{Do: "parking", Change: record(func(rec *parking.Record) { rec.Cluster = "c2" }), Err: "no longer says so"},
		{Do: "parking", Change: all(record(func(rec *parking.Record) { rec.Node = "wk2" }), (*scene).Ready, func(s *scene) { s.Number, s.Plan.Found.Parking = 9900, nil }), Err: "parking VM of wk1: not found"},
	}, "not found")
}
