package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// What a commit waits for is the sync of the log. Where the log grows, a file
// system has to write down its new size and blocks as well, which takes as long
// again as the data (ext4: 460 µs for 40 KiB, 220 µs over blocks that were
// written before). So the log is made as long as it gets before it is used.
const (
	logPages = 2000 // after which a checkpoint lets the log begin anew
	logBytes = logPages*(8192+24) + 1<<20

	// zeroBytes is what one call writes of it. Linux keeps what one call wrote as
	// one piece of memory, if it can, and each later write into that walks
	// through all of its blocks, so it is not much more than a page of SQLite's.
	zeroBytes = 16 << 10
)

// ready opens the connection that changes the database, brings that to the
// newest schema and makes its log long. Zeros behind the frames of a log, or
// instead of a log, mean nothing to SQLite: a frame counts only with the salts
// of the log's head and the checksum of all before it. Only what is behind
// the end is written, and before SQLite opens the file.
func (d dialect) ready(path string, short func(error)) (*conn, error) {
	for {
		if err := d.lengthen(path); err != nil {
			short(err) // it costs time only
		}
		db, err := d.writer(path)
		if err != nil {
			return nil, err
		}
		tables, err := db.integer("SELECT count(*) FROM sqlite_schema")
		if err == nil {
			err = migrate(db)
		}
		if err != nil {
			return nil, errors.Join(err, db.close())
		}
		if tables > 0 {
			return db, nil
		}
		// SQLite deletes the log of an empty database, so that got its tables first.
		if err := db.close(); err != nil {
			return nil, err
		}
	}
}

// lengthen makes the log of a database that is not empty logBytes long, or
// leaves it as it was.
func lengthen(path string) error {
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return err
	}
	f, err := os.OpenFile(filepath.Clean(path)+"-wal", os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("make the log long: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.Size() < logBytes {
		if err = zeros(f, info.Size()); err != nil {
			err = errors.Join(err, f.Truncate(info.Size()))
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("make the log long: %w", err)
	}
	return nil
}

// zeros writes them from at on and syncs: blocks that are only set aside would
// have to be written down as used with each commit.
func zeros(f *os.File, at int64) error {
	block := make([]byte, zeroBytes)
	for at < logBytes {
		n, err := f.WriteAt(block[:min(int64(len(block)), logBytes-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return unix.Fdatasync(int(f.Fd())) // #nosec G115 -- a descriptor
}
