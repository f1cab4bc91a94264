package images

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// withoutSignatures is a registry that denies tags that do not exist, as Artifactory
// does (sigstore/cosign issue 2973) and as factories expect of theirs
// (image-factory, internal/frontend/http/registry.go).
type withoutSignatures struct{ Puller }

func (withoutSignatures) Signatures(context.Context, string) ([]Signature, error) {
	return nil, fmt.Errorf("403: %w", ErrDenied)
}

func TestSignaturesDenied(t *testing.T) {
	t.Parallel()
	for mode, refused := range map[SignatureMode]bool{SignatureRequire: true, SignatureWarn: false} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.factory.key = newKey(t).pem
			builder := b.builder()
			builder.Puller, builder.Signature.Mode = withoutSignatures{builder.Puller}, mode
			err := b.run(t, builder.Step())
			if refused != (fault.KindOf(err) == fault.Refused) || !refused && err != nil {
				t.Fatalf("err = %v", err)
			}
			if notes := strings.Join(b.notes, "\n"); strings.Contains(notes, "warning: look for the installer's signature: 403") == refused {
				t.Errorf("notes:\n%s", notes)
			}
		})
	}
}
