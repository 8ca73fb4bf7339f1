//go:build unix

package main

import "context"

// engineJobs reads the jobs of engines, and those of the alerts that they forwarded, with how many dead letters of each are Pending.
func (w *witness) engineJobs(ctx context.Context) ([]engineJob, error) {
	rows, err := w.db.QueryContext(ctx, `
		SELECT j.id, COALESCE(m.messageId, ''), CONCAT(ch.channelId, '/', c.consumerId), j.status, COALESCE(e.pending, 0)
		FROM job j LEFT JOIN message m ON m.id = j.messageId JOIN consumer c ON c.id = j.consumerId JOIN channel ch ON ch.id = c.channelId
		LEFT JOIN (SELECT JobId, COUNT(*) pending FROM engineDlq WHERE Status = 'Pending' GROUP BY JobId) e ON e.JobId = j.id
		WHERE c.type = 'engine' OR ch.channelId = ?`, channelForwards)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []engineJob
	for rows.Next() {
		var j engineJob
		var id []byte
		if err := rows.Scan(&id, &j.Message, &j.Consumer, &j.Status, &j.Pending); err != nil {
			return nil, err
		}
		j.Job = jobID(id)
		out = append(out, j)
	}
	return out, rows.Err()
}

// works reads the history of what engines did.
func (w *witness) works(ctx context.Context) ([]workDone, error) {
	rows, err := w.db.QueryContext(ctx, `
		SELECT PartitionKey, CorrelationId, InstanceId, Operation, SUM(Status = 'Succeeded'), SUM(Status = 'Failed') FROM engineHistory
		WHERE PartitionKey IN (?, ?, ?) AND Operation NOT IN ('requeue', 'purge', 'resolve', 'expire')
		GROUP BY PartitionKey, CorrelationId, InstanceId, Operation`, engineRemote, engineLocked, engineAlerts)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []workDone
	for rows.Next() {
		var d workDone
		if err := rows.Scan(&d.Work.Engine, &d.Work.Correlation, &d.Work.Instance, &d.Work.Operation, &d.Succeeded, &d.Failed); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, rows.Err()
}
