DROP TABLE IF EXISTS workflow_activity;
DROP TABLE IF EXISTS workflow_history;
DROP TABLE IF EXISTS workflow_event;
DROP TABLE IF EXISTS workflow_instance;
