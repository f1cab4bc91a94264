package talos

import (
	"bytes"
	"context"
	"fmt"
	"reflect"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"

	"github.com/recast-sh/recast/cluster"
)

// readPending compares the active configuration with the stored one. A machine that
// booted with the configuration on its disk shows no stored one until another is
// applied (controllers/config/acquire.go, Run): one tried before that cannot be
// detected.
func readPending(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	stored, err := readConfigID(ctx, s, config.PersistentID)
	if state.IsNotFoundError(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s, the stored one: %w", config.MachineConfigType, answer(err))
	}
	active, err := readConfigID(ctx, s, config.ActiveID)
	if err != nil {
		return fmt.Errorf("read %s, the active one: %w", config.MachineConfigType, answer(err))
	}
	k.Pending = !sameConfig(active, stored)
	return nil
}

// sameConfig reports whether two configurations have the same content, however they
// are written. Unreadable ones must be the same bytes.
func sameConfig(a, b cluster.Secret) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := parseDocuments(a)
	y, errY := parseDocuments(b)
	return errX == nil && errY == nil && reflect.DeepEqual(contents(x), contents(y))
}

// contents returns the documents that are not empty, as decoded.
func contents(docs []*document) (out []any) {
	for _, d := range docs {
		if d.node != nil {
			out = append(out, d.orig)
		}
	}
	return out
}
