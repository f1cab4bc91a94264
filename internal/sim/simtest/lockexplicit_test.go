package simtest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

const ownRepository = "127.0.0.1:5000/acme/frr"

// push stores images in the lab's registry and returns their digest.
func push(t *testing.T, lab *Lab, ref string, images v1.ImageIndex) string {
	t.Helper()
	tag, err := name.NewTag(ref)
	must(t, err)
	must(t, remote.WriteIndex(tag, images, remote.WithContext(t.Context()), remote.WithTransport(lab.Registry.Transport())))
	digest, err := images.Digest()
	must(t, err)
	return digest.String()
}

// frr is a user's own extension, of that version and content.
func frr(t *testing.T, version, content string) v1.ImageIndex {
	t.Helper()
	index, err := artefact.ExtensionIndex(artefact.Extension{
		Name: "frr", Version: version, Author: "Acme", Files: map[string][]byte{"/usr/local/bin/frr": []byte(content)},
	})
	must(t, err)
	return index
}

// TestLockOfOwnExtension: an extension in no list is resolved in its own registry, and the
// lock follows its tag only on request.
func TestLockOfOwnExtension(t *testing.T) {
	long(t)
	inLab(t, oneWorker(), func(t *testing.T, lab *Lab) {
		one := push(t, lab, ownRepository+":1.7", frr(t, "1.7.15", "one"))
		lab.Replace("recast.yaml", "images:\n", "images:\n  mirror: 127.0.0.1:5000/acme/talos\n")
		lab.Replace("recast.yaml", "storage: schematics/storage.yaml", "storage: {file: schematics/storage.yaml, extensions: ["+ownRepository+":1.7]}")
		lock := func(o pipeline.LockOptions) (schematics.Extension, pipeline.LockResult) {
			t.Helper()
			res, err := lab.Client().Lock(t.Context(), o)
			must(t, err)
			list := res.Lock.Schematics["storage"].Extensions
			return list[len(list)-1], res
		}
		locked := func(digest string) schematics.Extension {
			return schematics.Extension{Name: "frr", Version: "1.7.15", Ref: ownRepository, Digest: digest, Explicit: true, Tag: "1.7"}
		}
		got, res := lock(pipeline.LockOptions{})
		if diff := cmp.Diff(locked(one), got); diff != "" || !res.Written {
			t.Errorf("at first (-want +got):\n%s", diff)
		}
		two := push(t, lab, ownRepository+":1.7", frr(t, "1.7.15", "two"))
		if got, res := lock(pipeline.LockOptions{}); got.Digest != one || res.Differs {
			t.Errorf("without --update: %+v, differs %t", got, res.Differs)
		}
		got, res = lock(pipeline.LockOptions{Update: true})
		if diff := cmp.Diff(locked(two), got); diff != "" {
			t.Errorf("with --update (-want +got):\n%s", diff)
		}
		want := []string{"extension frr 1.7.15: " + one + " → " + two}
		if len(res.Changes) != 1 || !cmp.Equal(want, res.Changes[0].Reasons) || !cmp.Equal([]string{"wk1"}, res.Changes[0].Nodes) {
			t.Errorf("changes %+v", res.Changes)
		}

		lab.Replace("recast.yaml", ownRepository+":1.7", ownRepository+":1.7@"+one)
		got, res = lock(pipeline.LockOptions{})
		if diff := cmp.Diff(locked(one), got); diff != "" {
			t.Errorf("with its digest (-want +got):\n%s", diff)
		}
		if len(res.Warnings) != 1 || res.Warnings[0].Kind != schematics.TagMoved || res.Warnings[0].Locked != one || res.Warnings[0].Found != two {
			t.Errorf("warnings %+v", res.Warnings)
		}
	})
}
