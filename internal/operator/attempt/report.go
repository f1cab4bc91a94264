package attempt

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Reporter writes to the Kubernetes API. What fails is tried again until a deadline: the API may be
// away for a while, since a cluster may roll itself.
type Reporter struct {
	Client  client.Client
	Log     io.Writer
	Patient time.Duration // how long the last words of an attempt are tried
}

// retryPause is between two tries.
const retryPause = 2 * time.Second

// lastWords calls write until it succeeds.
func (r Reporter) lastWords(ctx context.Context, what string, write func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.Patient)
	defer cancel()
	for {
		err := write(ctx)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err) {
			return err
		}
		fmt.Fprintf(r.Log, "%s: %v; trying again\n", what, err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(retryPause):
		}
	}
}

// status replaces fields of the status of an object. Those that are not named stay.
func (r Reporter) status(ctx context.Context, o client.Object, fields map[string]any) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	var patch []operation
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		patch = append(patch, operation{"add", "/status/" + name, fields[name]})
	}
	b, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return r.Client.Status().Patch(ctx, o, client.RawPatch(types.JSONPatchType, b))
}

// object is what the task is about.
func (t Task) object() client.Object {
	if t.Kind == Check {
		return &v1alpha1.TalosCluster{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Cluster}}
	}
	return &v1alpha1.ImageRoll{ObjectMeta: metav1.ObjectMeta{Namespace: t.Namespace, Name: t.Roll}}
}

// What a key of a ConfigMap may take: a text that is larger is compressed, and the files of a plan
// fit beside it. All keys together may take 1 MiB.
const (
	maxText  = 200 << 10
	maxFiles = 400 << 10
)

// keep writes results into the ConfigMap that the operator has made for them. A text that is too
// large is compressed, under its name with .gz.
func (a *Attempt) keep(ctx context.Context, results map[string][]byte) error {
	if len(results) == 0 {
		return nil
	}
	data, binary := map[string]any{}, map[string]any{}
	for key, b := range results {
		if key == KeyFiles {
			binary[key] = b
			continue
		}
		data[key], binary[key+".gz"] = string(b), nil // null: what an earlier one had
		if len(b) <= maxText {
			continue
		}
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		if _, err := w.Write(b); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		data[key], binary[key+".gz"] = nil, zipped.Bytes()
	}
	patch, err := json.Marshal(map[string]any{"data": data, "binaryData": binary})
	if err != nil {
		return err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: a.Results}}
	return a.Reporter.lastWords(ctx, "keep the results in ConfigMap "+a.Results, func(ctx context.Context) error {
		return a.Reporter.Client.Patch(ctx, m, client.RawPatch(types.MergePatchType, patch))
	})
}

// notKept says that keep has failed.
func (t Task) notKept(err error) string {
	return fmt.Sprintf("the ConfigMap %s has no results of this: %v", t.Results, err)
}

// result reads what keep has written, from the volume of the ConfigMap.
func result(dir, key string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, key))
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	f, err := os.Open(filepath.Join(dir, key+".gz"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// report replaces fields of the status of the object that the task is about.
func (a *Attempt) report(ctx context.Context, fields map[string]any) error {
	return a.Reporter.lastWords(ctx, "report to "+a.Cluster+" "+a.Roll, func(ctx context.Context) error {
		return a.Reporter.status(ctx, a.object(), fields)
	})
}
