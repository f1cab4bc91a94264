package attempt

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// secretText finds private keys: in PEM, of age, and base64 PEM under key:, as Talos' machine
// configurations have it. Certificates are under crt:, and what sops has encrypted has none of this.
var secretText = regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----|AGE-SECRET-KEY-1|\bkey["']?:\s*(?:[|>][-+0-9]*\s+)?["']?LS0tLS1CRUdJTi`)

// packable calls do for each file that is kept beside a plan: all but Secrets and what recast made. More
// people may read a ConfigMap than a Secret, so a private key among them is an error.
func packable(dir string, secrets []v1alpha1.SecretFile, do func(name string, b []byte) error) error {
	secret := map[string]bool{}
	for _, f := range secrets {
		secret[filepath.Clean(f.Path)] = true
	}
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && name == ".recast":
			return fs.SkipDir
		case !e.Type().IsRegular() || secret[filepath.FromSlash(name)]:
			return nil
		}
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if secretText.Match(b) {
			return exit{ExitConfig, fmt.Errorf("%s has a private key, and the files are kept in a ConfigMap: put it into a Secret and name that in spec.secrets.files", name)}
		}
		return do(name, b)
	})
}

// pack returns a gzipped tar of the files of a directory.
func pack(dir string, secrets []v1alpha1.SecretFile) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	err := packable(dir, secrets, func(name string, b []byte) error {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(b))}); err != nil {
			return err
		}
		_, err := archive.Write(b)
		return err
	})
	if err := errors.Join(err, archive.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// unpack is the reverse of pack.
func unpack(dir string, packed io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	zip, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	archive := tar.NewReader(zip)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if dir := filepath.Dir(h.Name); dir != "." {
			if err := root.MkdirAll(dir, 0o700); err != nil {
				return err
			}
		}
		b, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		if err := root.WriteFile(h.Name, b, 0o700); err != nil { // as source writes them: any may be a program
			return err
		}
	}
}
