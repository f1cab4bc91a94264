package talos

import (
	"bytes"
	"context"
	"reflect"

	"github.com/recast-sh/recast/cluster"
)

// readPending compares the active configuration with the stored one. One that was tried
// right after a boot can't be detected: see readConfigs.
func readPending(ctx context.Context, s session, k *cluster.MachineKubernetes) error {
	c, err := readConfigs(ctx, s)
	k.Pending = err == nil && !sameConfig(c.Active, c.Stored)
	return err
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
