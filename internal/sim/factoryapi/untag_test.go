package factoryapi_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/record"
)

// TestDeletedManifestsLoseTheirTags: as in real registries, unlike the library that the lab uses.
func TestDeletedManifestsLoseTheirTags(t *testing.T) {
	t.Parallel()
	opts := []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(factoryapi.NewRegistry(record.New()).Transport())}
	repository, err := name.NewRepository(registryAddr + "/acme/talos")
	if err != nil {
		t.Fatal(err)
	}
	one, errOne := random.Image(16, 1)
	other, errOther := random.Image(16, 1)
	if errOne != nil || errOther != nil {
		t.Fatal(errOne, errOther)
	}
	for tag, img := range map[string]remote.Taggable{"a": one, "b": one, "c": other} {
		if err := remote.Push(repository.Tag(tag), img, opts...); err != nil {
			t.Fatal(err)
		}
	}
	digest, err := one.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Delete(repository.Digest(digest.String()), opts...); err != nil {
		t.Fatal(err)
	}
	tags, err := remote.List(repository, opts...)
	if diff := cmp.Diff([]string{"c"}, tags); diff != "" || err != nil {
		t.Errorf("%v, tags (-want +got):\n%s", err, diff)
	}
	err = remote.Delete(repository.Digest(digest.String()), opts...)
	if err == nil {
		t.Errorf("a second deletion is answered with less than %d", http.StatusNotFound)
	}
}
