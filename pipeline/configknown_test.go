package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/roll"
	"github.com/recast-sh/recast/internal/journal"
)

// TestConfigKnown: the journal's configuration takes precedence over the user's file,
// and neither is used if its checksum is not the record's.
func TestConfigKnown(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte("machine: {}"))
	record := parking.Record{Run: "r1", Open: true, Strategy: cluster.Recreate, Config: hex.EncodeToString(sum[:])}
	edited := parking.Record{Run: "r1", Open: true, Strategy: cluster.Recreate}
	rollback := parking.Record{Run: "r1", Open: true, Strategy: cluster.Rollback}
	for name, c := range map[string]struct {
		journal, file string // "": there is none
		rec           parking.Record
		want          cluster.ConfigPlace
		damaged       bool
	}{
		"nowhere":                       {"", "", record, cluster.ConfigNowhere, false},
		"both":                          {"machine: {}", "machine: {}", record, cluster.ConfigInJournal, false},
		"another file":                  {"machine: {}", "machine: {a: 1}", record, cluster.ConfigInJournal, false},
		"the file alone":                {"", "machine: {}", record, cluster.ConfigInFile, false},
		"another file alone":            {"", "machine: {a: 1}", record, cluster.ConfigNowhere, false},
		"damaged":                       {"machine", "", record, cluster.ConfigNowhere, true},
		"damaged, the file is the same": {"machine", "machine: {}", record, cluster.ConfigInFile, false},
		"damaged, another file":         {"machine", "machine: {a: 1}", record, cluster.ConfigNowhere, true},
		"the record lacks its sum":      {"machine: {}", "machine: {}", edited, cluster.ConfigNowhere, true},
		"it does, and there is a file":  {"", "machine: {}", edited, cluster.ConfigNowhere, false},
		"a rollback brings none":        {"", "machine: {a: 1}", rollback, cluster.ConfigInFile, false},
		"a machine that was reset":      {"", "machine: {a: 1}", parking.Record{}, cluster.ConfigInFile, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := projectOf(t)
			j, err := journal.Open(p.Runs().Dir, journal.Options{Run: "r1"})
			if err == nil && c.journal != "" {
				err = j.PutSecret(roll.MachineConfigKey("wk1"), []byte(c.journal))
			}
			if err := errors.Join(err, j.Close()); err != nil {
				t.Fatal(err)
			}
			file := func(context.Context, string) (cluster.Secret, bool, error) {
				return cluster.Secret(c.file), c.file != "", nil
			}
			got, err := configKnown(t.Context(), p, Machines{MachineConfig: file}, "wk1", c.rec)
			if got != c.want || errors.Is(err, cluster.ErrConfigDamaged) != c.damaged || err != nil && !c.damaged {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
