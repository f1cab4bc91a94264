// Package source fetches the files of a cluster (recast.yaml, recast.lock, schematics) from where
// a TalosCluster says that they are, into a directory.
package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Limits of what is fetched: the plan of a roll is kept together with its files, in a ConfigMap.
const (
	maxFiles    = 2000
	maxFileSize = 8 << 20
)

// Fetch writes the files of a source to the directory into. Those of a ConfigMap are read from its
// volume, mounted at the directory configMap; gitSecret is the directory with the keys of the
// Secret for Git, if there is one. Fetch returns the revision of the files: a commit, a
// digest or, for a ConfigMap, a hash of the contents; and that hash, which stays the same when a
// commit changes other directories.
func Fetch(ctx context.Context, src v1alpha1.Source, configMap, gitSecret, into string) (revision, files string, err error) {
	root, err := os.OpenRoot(into)
	if err != nil {
		return "", "", err
	}
	defer root.Close()
	out := &target{root: root}
	switch {
	case src.ConfigMap != nil:
		err = out.fromConfigMap(configMap)
	case src.Git != nil:
		revision, err = out.fromGit(ctx, *src.Git, gitSecret)
	case src.OCI != nil:
		revision, err = out.fromOCI(ctx, *src.OCI)
	default:
		return "", "", errors.New("spec.source: names no configMap, git or oci")
	}
	if err != nil {
		return "", "", err
	}
	if _, err := root.Stat("recast.yaml"); errors.Is(err, fs.ErrNotExist) {
		return "", "", fmt.Errorf("%s has no recast.yaml%s", describe(src), out.names())
	}
	files = out.hash()
	return cmp.Or(revision, files), files, nil
}

// describe names a source for people.
func describe(src v1alpha1.Source) string {
	switch {
	case src.ConfigMap != nil:
		return "ConfigMap " + src.ConfigMap.Name
	case src.Git != nil:
		return strings.TrimSuffix(src.Git.URL+" "+src.Git.Ref+" "+src.Git.Path, " ")
	default:
		return strings.TrimSuffix(src.OCI.Reference+" "+src.OCI.Path, " ")
	}
}

// target is the directory that files are written to.
type target struct {
	root  *os.Root
	files []string
	sums  []string // of the files, in the same order
}

// add writes a file. Its name is relative, with slashes.
func (t *target) add(name string, r io.Reader) error {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("%q: is outside of the directory", name)
	}
	if len(t.files) == maxFiles {
		return fmt.Errorf("more than %d files: name the directory with recast.yaml in spec.source", maxFiles)
	}
	if err := t.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	// Gates, hooks and machineConfigs may name any of them as a program, and a ConfigMap keeps no modes.
	f, err := t.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(r, maxFileSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n > maxFileSize {
		return fmt.Errorf("%s: is larger than %d MiB", name, maxFileSize>>20)
	}
	t.files, t.sums = append(t.files, name), append(t.sums, fmt.Sprintf("%x", sum.Sum(nil)))
	return nil
}

// hash is over the names and contents of the files, whatever order they were added in.
func (t *target) hash() string {
	var lines []string
	for i, name := range t.files {
		lines = append(lines, fmt.Sprintf("%s  %s\n", t.sums[i], name))
	}
	slices.Sort(lines)
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(strings.Join(lines, ""))))
}

// names lists the first files, for an error.
func (t *target) names() string {
	if len(t.files) == 0 {
		return ": it has no file at all"
	}
	return ", only " + strings.Join(t.files[:min(len(t.files), 5)], ", ")
}

// fromConfigMap copies the files of a mounted ConfigMap. The kubelet puts them in a directory
// ..data, to which the visible names are links.
func (t *target) fromConfigMap(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // sorted by name
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		if err := t.copyFile(filepath.Join(dir, e.Name()), strings.ReplaceAll(e.Name(), "__", "/")); err != nil {
			return err
		}
	}
	return nil
}

func (t *target) copyFile(from, name string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	return t.add(name, f)
}
