package kubeapi_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// warned collects warnings of the API.
type warned []string

func (w *warned) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestUnknownFields: a field that a kind does not have is a warning, or an error for a client
// that wants so.
func TestUnknownFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters").AppsV1().RESTClient()
		const (
			wrong = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"replcas":1}}`
			path  = "/apis/apps/v1/namespaces/default/deployments"
		)
		said := &warned{}
		post := func(validation string) error {
			*said = nil
			return c.Post().RequestURI(path+"?dryRun=All&fieldValidation="+validation).WarningHandler(said).SetHeader("Content-Type", "application/json").Body([]byte(wrong)).Do(t.Context()).Error()
		}
		for _, validation := range []string{"", "Warn"} {
			if err := post(validation); err != nil || len(*said) != 1 || (*said)[0] != `unknown field "spec.replcas"` {
				t.Errorf("%q: %v, warned of %q", validation, err, *said)
			}
		}
		if err := post("Ignore"); err != nil || len(*said) != 0 {
			t.Errorf("Ignore: %v, warned of %q", err, *said)
		}
		const refused = `Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.replcas"`
		if err := post("Strict"); err == nil || err.Error() != refused {
			t.Errorf("Strict: %v", err)
		}
		deploy(t, l.client(t, "system:masters"), "web", 1)
		patch := func(kind types.PatchType) error {
			return c.Patch(kind).RequestURI(path + "/web?fieldValidation=Strict&fieldManager=me").Body([]byte(wrong)).Do(t.Context()).Error()
		}
		for kind, want := range map[types.PatchType]string{
			types.MergePatchType:          `strict decoding error: unknown field "spec.replcas"`,
			types.StrategicMergePatchType: `strict decoding error: unknown field "spec.replcas"`,
			types.ApplyPatchType:          "failed to create typed patch object (default/web; apps/v1, Kind=Deployment): .spec.replcas: field not declared in schema",
		} {
			if err := patch(kind); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("%s: %v", kind, err)
			}
		}
	})
}

var _ rest.WarningHandler = (*warned)(nil)

// TestOwners: a client with a name owns the fields that it sets, and entries of a list have
// owners of their own.
func TestOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(t, "system:masters").CoreV1().Services("default")
		apply := func(manager, port string) error {
			body := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"ports":[` + port + `]}}`
			_, err := c.Patch(t.Context(), "web", types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: manager})
			return err
		}
		if err := apply("a", `{"port":80,"protocol":"TCP","name":"http"}`); err != nil {
			t.Fatal(err)
		}
		if err := apply("b", `{"port":443,"protocol":"TCP","name":"https"}`); err != nil {
			t.Errorf("another port: %v", err)
		}
		err := apply("b", `{"port":80,"protocol":"TCP","name":"web"}`)
		if err == nil || err.Error() != `Apply failed with 1 conflict: conflict with "a": .spec.ports[port=80,protocol="TCP"].name` {
			t.Errorf("the same port: %v", err)
		}
	})
}

// TestOpenAPI: the index names a document for each group, and a document has what kubectl
// apply and explain look for.
func TestOpenAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.Define(widgets(false))
		c := l.client(t, "system:masters").CoreV1().RESTClient()
		var index struct {
			Paths map[string]struct{ ServerRelativeURL string }
		}
		fetch := func(uri string, into any) {
			t.Helper()
			b, err := c.Get().RequestURI(uri).SetHeader("Accept", "application/json").DoRaw(t.Context())
			if err == nil {
				err = json.Unmarshal(b, into)
			}
			if err != nil {
				t.Fatalf("%s: %v", uri, err)
			}
		}
		fetch("/openapi/v3", &index)
		for _, r := range append(store.Resources(), widgets(false)) {
			group := "apis/" + r.GroupVersion().String()
			if r.Group == "" {
				group = "api/v1"
			}
			var doc struct {
				Components struct {
					Schemas map[string]struct {
						Kinds      []map[string]string `json:"x-kubernetes-group-version-kind"`
						Properties map[string]map[string]any
					}
				}
				Paths map[string]struct {
					Patch struct {
						Kind        map[string]string `json:"x-kubernetes-group-version-kind"`
						Parameters  []struct{ Name string }
						RequestBody struct{ Content map[string]any }
					}
				}
			}
			fetch(index.Paths[group].ServerRelativeURL, &doc)
			patched, described := false, false
			for _, p := range doc.Paths {
				validates := false
				for _, parameter := range p.Patch.Parameters {
					validates = validates || parameter.Name == "fieldValidation"
				}
				_, strategic := p.Patch.RequestBody.Content[string(types.StrategicMergePatchType)]
				patched = patched || p.Patch.Kind["kind"] == r.Kind && validates && strategic == (r.Group != widgets(false).Group)
			}
			for _, m := range doc.Components.Schemas {
				described = described || len(m.Kinds) == 1 && m.Kinds[0]["kind"] == r.Kind
			}
			if !patched || !described {
				t.Errorf("%s: patch %v, schema %v", r.Kind, patched, described)
			}
			if r.Kind == "Pod" {
				containers := doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"].Properties["containers"]
				if containers["x-kubernetes-patch-merge-key"] != "name" || containers["x-kubernetes-patch-strategy"] != "merge" {
					t.Errorf("containers: %v", containers)
				}
			}
		}
		if _, err := c.Get().RequestURI("/openapi/v3/apis/batch/v1").DoRaw(t.Context()); err == nil {
			t.Error("a group that is not served has a document")
		}
	})
}
