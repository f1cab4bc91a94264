package wait_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/wait"
)

func TestAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asks := func(lasts time.Duration, err error) func() error {
			return func() error {
				time.Sleep(lasts)
				return err
			}
		}
		began := time.Now()
		err := wait.All(asks(2*time.Second, errors.New("first")), asks(3*time.Second, nil), asks(time.Second, errors.New("last")))
		if took := time.Since(began); took != 3*time.Second || err == nil || err.Error() != "first\nlast" {
			t.Errorf("%v after %s", err, took)
		}
		if err := wait.All(asks(0, nil), asks(0, nil)); err != nil {
			t.Error(err)
		}
	})
}
