// Package machineconfig reads machine configurations from where the user keeps them: from
// the files of a directory, or from what a program writes. It decrypts what SOPS or age
// encrypted. No plaintext of it stays on a disk. Its type is [Source].
package machineconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// Options say where configurations are: Dir or Run is given.
type Options struct {
	Place string                    // of the setting, for messages: "recast.yaml:6:3: talos.machineConfigs"
	File  func(node string) string  // path of a node's file within the directory
	Dir   string                    // of the files
	Run   func(out string) []string // program that writes the files to the directory out, and its arguments
	Base  string                    // working directory of programs
	Env   []string                  // this process's environment
	Pass  []string                  // names of further variables for the programs
	Note  func(line string)         // told what a program that takes its time says; may be nil
}

// Source reads configurations. It may be used by several goroutines.
type Source struct {
	o Options

	mu      sync.Mutex
	written map[string][]byte // what Run has written, by path
	failed  error             // why it has not
}

// New returns a Source. It fails if the directory can't be read.
func New(o Options) (*Source, error) {
	if o.Dir != "" {
		if _, err := os.Stat(o.Dir); err != nil {
			return nil, fault.MachineConfig.Configf("%s: %w", o.Place, err)
		}
	}
	return &Source{o: o}, nil
}

// Config returns the configuration of a node, decrypted; false if there is none. A file is
// read again by each call, a program runs once.
func (s *Source) Config(ctx context.Context, node string) (cluster.Secret, bool, error) {
	name := s.o.File(node)
	read := s.file
	if s.o.Run != nil {
		read = s.output
	}
	text, where, err := read(ctx, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("machine configuration of %s: %w", node, err)
	}
	text, err = s.decrypted(ctx, where, text)
	return text, err == nil, err
}

func (s *Source) file(_ context.Context, name string) (text []byte, where string, err error) {
	where = filepath.Join(s.o.Dir, name)
	text, err = os.ReadFile(where)
	return text, where, err
}

// output returns a file that the program has written.
func (s *Source) output(ctx context.Context, name string) (text []byte, where string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil && s.failed == nil {
		written, err := s.run(ctx)
		if ctx.Err() != nil {
			return nil, "", err // the next caller may have more time
		}
		s.written, s.failed = written, err
	}
	text, ok := s.written[filepath.Clean(name)]
	switch {
	case s.failed != nil:
		return nil, "", s.failed
	case !ok:
		return nil, "", fs.ErrNotExist
	}
	return text, name + " of " + s.o.Run("{out}")[0], nil
}
